# SPDX-License-Identifier: Apache-2.0
"""The `openai` package against a server of 2 ranks: what its helpers make of answers, streamed and not."""

import asyncio
import json
import typing
import unittest

import openai
import pydantic

from server import Server, problems

QUESTION = "Tom has 12 apples. Then Tom buys 7 more. How many apples does Tom have now?"
MESSAGES = [{"role": "user", "content": QUESTION}]
TOOL = {
    "type": "function",
    "function": {
        "name": "count",
        "description": "Counts things.",
        "parameters": {
            "type": "object",
            "properties": {"thing": {"type": "string", "enum": ["apples", "pears"]}, "exact": {"type": "boolean"}},
            "required": ["thing", "exact"],
            "additionalProperties": False,
        },
    },
}


class Fruit(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    fruit: typing.Literal["apples", "pears"]
    ripe: bool


def setUpModule():
    global server, client, model
    server = unittest.enterModuleContext(Server(name="openai"))
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=120)
    model = client.models.list().data[0].id


class OpenAI(unittest.TestCase):
    def test_models(self):
        self.assertEqual(client.models.retrieve(model).id, model)
        with self.assertRaises(openai.NotFoundError):
            client.models.retrieve("nobody")

    def test_chat(self):
        answer = client.chat.completions.create(model=model, messages=MESSAGES, temperature=0)
        self.assertEqual(answer.object, "chat.completion")
        choice = answer.choices[0]
        self.assertEqual(choice.finish_reason, "stop")
        self.assertEqual(choice.message.content.strip(), "The answer is 19.")
        self.assertIn("12+7=19", choice.message.reasoning_content)
        self.assertEqual(choice.message.reasoning, choice.message.reasoning_content)
        usage = answer.usage
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
        self.assertGreater(usage.completion_tokens_details.reasoning_tokens, 0)

    def test_chat_streamed_is_chat(self):
        whole = client.chat.completions.create(model=model, messages=MESSAGES, temperature=0)
        with client.chat.completions.stream(
            model=model, messages=MESSAGES, temperature=0, stream_options={"include_usage": True}
        ) as stream:
            chunks = [event.chunk for event in stream if event.type == "chunk"]
        final = stream.get_final_completion()
        self.assertEqual(final.choices[0].message.content, whole.choices[0].message.content)
        self.assertEqual(final.choices[0].finish_reason, "stop")
        self.assertEqual(final.usage, whole.usage)
        self.assertEqual({chunk.id for chunk in chunks}, {chunks[0].id})
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        reasoning = "".join(
            chunk.choices[0].delta.reasoning_content or ""
            for chunk in chunks
            if chunk.choices and hasattr(chunk.choices[0].delta, "reasoning_content")
        )
        self.assertEqual(reasoning, whole.choices[0].message.reasoning_content)
        self.assertEqual([chunk.usage is not None for chunk in chunks], [False] * (len(chunks) - 1) + [True])

    def test_chat_without_thinking(self):
        answer = client.chat.completions.create(
            model=model,
            messages=MESSAGES,
            temperature=0,
            extra_body={"chat_template_kwargs": {"enable_thinking": False}},
        )
        self.assertTrue(answer.choices[0].message.content.strip().endswith("The answer is 19."))
        self.assertFalse(getattr(answer.choices[0].message, "reasoning_content", None))

    def test_completion_and_its_stream(self):
        asked = {"model": model, "prompt": problems(1)[0]["prompt"], "max_tokens": 40, "temperature": 0}
        whole = client.completions.create(**asked)
        self.assertEqual(whole.object, "text_completion")
        self.assertIn("6+28=34", whole.choices[0].text)
        chunks = list(client.completions.create(**asked, stream=True))
        self.assertEqual("".join(chunk.choices[0].text for chunk in chunks), whole.choices[0].text)
        ends = [chunk.choices[0].finish_reason for chunk in chunks]
        self.assertEqual(ends, [None] * (len(ends) - 1) + ["length"])

    def test_stop_and_choices(self):
        answer = client.completions.create(
            model=model, prompt=problems(1)[0]["prompt"], n=3, max_tokens=40, temperature=0.7, seed=1, stop=["="]
        )
        self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2])
        for choice in answer.choices:
            self.assertNotIn("=", choice.text)
        again = client.completions.create(
            model=model, prompt=problems(1)[0]["prompt"], n=3, max_tokens=40, temperature=0.7, seed=1, stop=["="]
        )
        self.assertEqual([c.text for c in again.choices], [c.text for c in answer.choices])

    def test_required_tool(self):
        asked = {"model": model, "messages": MESSAGES, "tools": [TOOL], "temperature": 0, "max_tokens": 400}
        for choice in ("required", {"type": "function", "function": {"name": "count"}}):
            whole = client.chat.completions.create(**asked, tool_choice=choice)
            self.assertEqual(whole.choices[0].finish_reason, "tool_calls")
            calls = whole.choices[0].message.tool_calls
            for call in calls:
                self.assertEqual(call.function.name, "count")
                arguments = json.loads(call.function.arguments)
                self.assertIn(arguments["thing"], ["apples", "pears"])
                self.assertIsInstance(arguments["exact"], bool)
            with client.chat.completions.stream(**asked, tool_choice=choice) as stream:
                streamed = stream.get_final_completion()
            self.assertEqual(streamed.choices[0].finish_reason, "tool_calls")
            self.assertEqual(
                [(call.function.name, call.function.arguments) for call in streamed.choices[0].message.tool_calls],
                [(call.function.name, call.function.arguments) for call in calls],
            )

    def test_tool_conversation(self):
        """A history with a call and its result is taken, and no tool is called where none may be."""
        call = {"id": "call_1", "type": "function", "function": {"name": "count", "arguments": '{"thing": "apples"}'}}
        history = [
            *MESSAGES,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "19"},
        ]
        answer = client.chat.completions.create(
            model=model, messages=history, tools=[TOOL], tool_choice="none", max_tokens=40
        )
        self.assertIsNone(answer.choices[0].message.tool_calls)

    def test_structured_output(self):
        answer = client.chat.completions.parse(
            model=model, messages=MESSAGES, response_format=Fruit, temperature=0, max_tokens=400
        )
        self.assertIsInstance(answer.choices[0].message.parsed, Fruit)
        with client.chat.completions.stream(
            model=model, messages=MESSAGES, response_format=Fruit, temperature=0, max_tokens=400
        ) as stream:
            final = stream.get_final_completion()
        self.assertEqual(final.choices[0].message.parsed, answer.choices[0].message.parsed)

    def test_logprobs(self):
        answer = client.chat.completions.create(
            model=model, messages=MESSAGES, temperature=0, logprobs=True, top_logprobs=3, max_tokens=12
        )
        tokens = answer.choices[0].logprobs.content
        self.assertEqual(len(tokens), answer.usage.completion_tokens)
        for token in tokens:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertEqual(token.logprob, max(top.logprob for top in token.top_logprobs))
            self.assertEqual(bytes(token.bytes).decode(errors="replace"), token.token)
        plain = client.completions.create(
            model=model, prompt="6+28=", logprobs=2, echo=True, max_tokens=4, temperature=0
        )
        logprobs = plain.choices[0].logprobs
        self.assertEqual("".join(logprobs.tokens), plain.choices[0].text)
        self.assertIsNone(logprobs.token_logprobs[0])
        self.assertTrue(all(value <= 0 for value in logprobs.token_logprobs[1:]))
        self.assertEqual(logprobs.text_offset[0], 0)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as raised:
            client.chat.completions.create(model=model, messages=MESSAGES, temperature=-1)
        self.assertEqual(raised.exception.param, "temperature")
        self.assertEqual(raised.exception.type, "invalid_request_error")
        with self.assertRaises(openai.NotFoundError) as raised:
            client.chat.completions.create(model="nobody", messages=MESSAGES)
        self.assertEqual(raised.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as raised:
            client.completions.create(model=model, prompt="a " * 5000, max_tokens=1)
        self.assertEqual(raised.exception.code, "context_length_exceeded")

    def test_many_at_once(self):
        """The same answers as alone: greedy text does not depend on what else is in the batch."""
        asked = problems(32)

        async def ask_all():
            many = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=120)
            async with many:
                return await asyncio.gather(
                    *(
                        many.chat.completions.create(
                            model=model, temperature=0, messages=[{"role": "user", "content": one["question"]}]
                        )
                        for one in asked
                    )
                )

        for one, answer in zip(asked, asyncio.run(ask_all()), strict=True):
            self.assertEqual(answer.choices[0].message.content.strip(), f"The answer is {one['answer']}.")
