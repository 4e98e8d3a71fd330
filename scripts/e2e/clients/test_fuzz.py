# SPDX-License-Identifier: Apache-2.0
"""Every field of every endpoint with wrong types, sizes and encodings: the answer is a 4xx with an error that
is JSON, or a sound 200; never a 5xx, never a broken connection. What came before does no harm to what comes
after."""

import concurrent.futures
import contextlib
import http.client
import itertools
import json
import queue
import random
import socket
import time
import unittest

from server import Server, problems

CHAT = {"messages": [{"role": "user", "content": "2+2="}], "max_tokens": 2}
COMPLETION = {"prompt": "2+2=", "max_tokens": 2}
GENERATE = {"text": "2+2=", "sampling_params": {"max_new_tokens": 2}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}

SAMPLING = """temperature top_p top_k min_p frequency_penalty presence_penalty repetition_penalty stop
    stop_token_ids stop_regex no_stop_trim ignore_eos regex ebnf json_schema structural_tag
    skip_special_tokens spaces_between_special_tokens n""".split()
OPENAI = [
    *SAMPLING,
    *"""model seed stream stream_options stream_options.include_usage stream_options.continuous_usage_stats
    logprobs logit_bias user metadata best_of suffix include_stop_str_in_output min_tokens max_tokens
    max_completion_tokens response_format response_format.type response_format.json_schema response_format.schema
    rid priority cache_salt return_token_ids return_prompt_token_ids return_meta_info return_routed_experts
    guided_json guided_regex guided_grammar guided_choice lora_path session_params""".split(),
]
FIELDS = {
    "/v1/chat/completions": (
        CHAT,
        [
            *OPENAI,
            *"""messages messages.0 messages.0.role messages.0.content messages.0.content.0 messages.0.name
            messages.0.content.0.type messages.0.content.0.text messages.0.tool_calls messages.0.tool_call_id
            messages.0.reasoning_content tools tools.0 tools.0.type tools.0.function tools.0.function.name
            tools.0.function.parameters tools.0.function.strict tool_choice tool_choice.type tool_choice.function
            tool_choice.function.name parallel_tool_calls top_logprobs chat_template_kwargs
            chat_template_kwargs.enable_thinking reasoning_effort reasoning reasoning.effort separate_reasoning
            stream_reasoning continue_final_message add_generation_prompt messages.0.tool_calls.0
            messages.0.tool_calls.0.id messages.0.tool_calls.0.function messages.0.tool_calls.0.function.name
            messages.0.tool_calls.0.function.arguments""".split(),
        ],
    ),
    "/v1/completions": (COMPLETION, [*OPENAI, *"prompt prompt.0 prompt.0.0 echo".split()]),
    "/generate": (
        GENERATE,
        [
            *(f"sampling_params.{name}" for name in [*SAMPLING, "max_new_tokens", "min_new_tokens", "stream_interval"]),
            *"""text text.0 input_ids input_ids.0 input_ids.0.0 input_embeds image_data sampling_params
            sampling_params.0 rid rid.0 stream return_logprob logprob_start_len top_logprobs_num token_ids_logprob
            return_text_in_logprobs lora_path return_hidden_states return_routed_experts background priority
            session_params stream_options""".split(),
        ],
    ),
    "/tokenize": ({"prompt": "a"}, "prompt prompt.0 text messages add_special_tokens return_token_strs model".split()),
    "/detokenize": ({"tokens": [1]}, "tokens tokens.0 tokens.0.0 skip_special_tokens model".split()),
    "/abort_request": ({"rid": "nobody"}, "rid abort_all".split()),
}
# As they stand in the body: some are no JSON.
VALUES = [
    b"null", b"true", b"false", b"0", b"-1", b"1", b"-0.0", b"1.5", b"7", b"2147483648", b"9223372036854775808",
    b"18446744073709551616", b"-9223372036854775809", b"1e308", b"1e400", b"-1e400", b"1e-400", b"NaN", b"Infinity",
    b'""', b'"a"', b'"1"', rb'"\u0000"', rb'"\ud800"', rb'"\udc00\ud800"', b'"\xff\xfe"', b'"\xed\xa0\x80"',
    b'"\xf0\x9f\x98\x80"', b'"' + b"a" * 100000 + b'"', b'"((((((((a*)*)*)*)*)*)*)*"', b'"<|im_start|>"',
    b"[]", b"{}", b"[null]", b"[[]]", b"[{}]", b"[-1]", b"[1099511627776]", b"[1.5]", b'["a", 1]', b'[""]',
    b'{"": ""}', b'{"a": {"b": []}}', b'{"type": "object", "properties": 1}', b'{"type": "json_schema"}',
    b'{"1": 1e400}', b'{"-1": 100}', b"[" * 300 + b"]" * 300, b'{"a":' * 300 + b"1" + b"}" * 300,
    b"[" + b"1," * 20000 + b"1]",
]  # fmt: skip
BODIES = [
    b"", b" ", b"null", b"[]", b'"x"', b"1", b"{", b"}", b"{}", b'{"prompt"}', b'{"prompt": "a",}', b"{'prompt': 1}",
    b"\xff\xfe{\x00}\x00", b"\x00" * 100, b"\xef\xbb\xbf{}", b'{"prompt": "\xc3\x28"}', b'{"prompt": "a"} x',
    b'{"prompt": "a", "prompt": 1}', b'{"\xff": 1}', b"[" * 100000, b'{"a":' * 100000, b'{"a": "' + b"\\u" * 1000,
    '{"prompt": "a"}'.encode("utf-16"), '{"prompt": "a"}'.encode("utf-32"), b"prompt=a&max_tokens=2",
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00",
]  # fmt: skip
RAW = [
    b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET /health HTTP/1.1\r\nHost\r\n\r\n", b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 20000 + b"\r\n",
    b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n", b"GET /%zz%00%ff HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n", b"GET [ HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    b"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /generate HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    b"POST /generate HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    b"POST /generate HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n{}",
    b"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\n{",
]  # fmt: skip
PATHS = ["/", "/nowhere", "/v1", "/v1/models/%00", "/v1/models/..%2f..%2fetc", "/expert_load?window=x&format=y",
         "/expert_load?window=-1", "/expert_load?window=1e400", "/expert_load?%ff=%zz", "/plan?format=x",
         "/health?x=" + "a" * 2000, "/v1/embeddings", "/metrics?x", "/v1/chat/completions/"]  # fmt: skip
CONNECTIONS = 8
NOT_OFFERED = 501  # the answer of endpoints that other servers have
METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "BREW"]


def setUpModule():
    global server
    server = unittest.enterModuleContext(Server(name="fuzz"))


def no_constant(name):
    raise ValueError(f"{name} is no JSON")


def fault_of(status, kind, body):
    """What is wrong with an answer; None: nothing."""
    if not 200 <= status < 500 and status != NOT_OFFERED:
        return f"status {status}"
    try:
        text = body.decode()
        if status == 200 and kind.startswith("text/event-stream"):
            events = [line.removeprefix("data: ") for line in text.split("\n") if line]
            if events.pop() != "[DONE]":
                return "no [DONE]"
            for event in events:
                json.loads(event, parse_constant=no_constant)
        elif kind.startswith("application/json"):
            answer = json.loads(text, parse_constant=no_constant)
            if status >= 400 and not {"message", "type", "param", "code"} <= answer["error"].keys():
                return "an error without its fields"
            if status >= 400 and not answer["error"]["message"]:
                return "an error without a message"
        elif status >= 400 and kind:
            return f"an error of type {kind}"
    except (ValueError, KeyError, TypeError) as error:
        return f"{error!r}"
    return None


def fault_of_call(connection, method, path, body, headers=None):
    """What is wrong with the answer to a request; None: nothing."""
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} | (headers or {}))
        response = connection.getresponse()
        data = response.read()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        return repr(error)
    kind = response.getheader("Content-Type") or ""
    # The answer to HEAD has the headers of a body that is not sent.
    return fault_of(response.status, "" if method == "HEAD" else kind, data)


def with_field(body, path, value):
    """The body's JSON with that value at a path: "messages.0.role"."""
    names = path.split(".")

    def place(node, names):
        if not names:
            return value
        name, rest = names[0], names[1:]
        if name.isdecimal():
            old = node if isinstance(node, list) and node else [None]
            others = b"".join(b"," + json.dumps(one).encode() for one in old[1:])
            return b"[" + place(old[0], rest) + others + b"]"
        old = dict(node) if isinstance(node, dict) else {}
        inner = place(old.pop(name, None), rest)
        others = b"".join(json.dumps(k).encode() + b":" + json.dumps(v).encode() + b"," for k, v in old.items())
        return b"{" + others + json.dumps(name).encode() + b":" + inner + b"}"

    return place(body, names)


class Fuzz(unittest.TestCase):
    def check(self, cases):
        """Each is (method, path, body, headers). Reports all that are answered wrongly."""
        faults = []
        free = queue.SimpleQueue()

        def one(case):
            connection = free.get()
            if fault := fault_of_call(connection, *case):
                faults.append(f"{case[0]} {case[1]} {(case[2] or b'')[-300:]}: {fault}")
            free.put(connection)

        with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as pool:
            for _ in range(CONNECTIONS):
                connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
                free.put(stack.enter_context(contextlib.closing(connection)))
            count = sum(1 for _ in pool.map(one, cases))
        self.assertGreater(count, 0)
        self.assertEqual(faults[:10], [], f"{len(faults)} of {count} cases")

    def tearDown(self):
        """The next request is answered as if nothing had been."""
        answer = server.post("/v1/completions", {"prompt": problems(1)[0]["prompt"], "max_tokens": 12})
        self.assertEqual((answer.status, answer.json()["choices"][0]["text"].strip()[:7]), (200, "6+28=34"))
        self.assertEqual(server.status("/health"), 200)

    def test_every_field_of_every_endpoint(self):
        self.check(
            ("POST", path, with_field(base, field, value), None)
            for path, (base, fields) in FIELDS.items()
            for field in fields
            for value in VALUES
        )

    def test_fields_together(self):
        """Random pairs and more, streamed or not, for some seconds."""
        chance = random.Random(1)
        end = time.monotonic() + 10
        paths = [path for path in FIELDS if len(FIELDS[path][1]) > 10]
        rich = CHAT | {"tools": [TOOL], "tool_choice": "required"}

        def case():
            path = chance.choice(paths)
            base, fields = FIELDS[path]
            base = rich if base is CHAT and chance.random() < 0.5 else base
            body = dict(base, stream=chance.random() < 0.5)
            for field in chance.sample([f for f in fields if "." not in f and f != "max_tokens"], 3):
                body[field] = chance.choice([None, 0, 1, -1, 2, 0.5, True, "a", "1", [], ["a"], [1], {}, {"a": 1}])
            return "POST", path, json.dumps(body).encode(), None

        while time.monotonic() < end:
            self.check([case() for _ in range(64)])

    def test_bodies_and_types(self):
        types = ["text/plain", "", "application/x-www-form-urlencoded", "application/json; charset=utf-16",
                 "application/json; charset=utf-8", "multipart/form-data; boundary=x", "\xff"]  # fmt: skip
        self.check(
            [("POST", path, body, None) for path in FIELDS for body in BODIES]
            + [
                ("POST", path, json.dumps(base).encode(), {"Content-Type": kind})
                for path, (base, _) in FIELDS.items()
                for kind in types
            ]
        )

    def test_paths_and_methods(self):
        known = [*FIELDS, "/health", "/v1/models", "/metrics", "/server_info", "/model_info", "/expert_load", "/plan"]
        self.check(
            (method, path, b"{}" if method in ("POST", "PUT", "PATCH") else None, None)
            for method, path in itertools.product(METHODS, [*PATHS, *known])
        )

    def test_too_large(self):
        answer = server.post("/v1/completions", b'{"prompt": "' + b"a" * (40 << 20) + b'"}')
        self.assertEqual(answer.status, 413)

    def test_what_is_no_http(self):
        """Answered with a 4xx or not at all, in a time that is bounded by the client's leaving."""
        for data in RAW:
            with self.subTest(data=data[:60]), socket.create_connection((server.host, server.port), timeout=20) as raw:
                raw.sendall(data)
                raw.shutdown(socket.SHUT_WR)
                try:
                    first = raw.makefile("rb").readline()
                except ConnectionResetError:
                    first = b""
                self.assertRegex(first, rb"^(HTTP/1\.[01] [45]\d\d .*\r\n)?$")
