# SPDX-License-Identifier: Apache-2.0
"""XTML, the chat format of Kimi-K3, as a reference: a conversation to a list of (text, is_marker).

A message is built as a tree, ("tag", {attributes}, [children]) or a text, and flattened at the end.
"""

import json

OPEN, CLOSE, SEP, END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"

EFFORT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
    "supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort=%s`."
)
TOOLS = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n%s\n```"
NEW_TOOLS = (
    "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\nHere are the specs for the extended tools.\n\n"
    "```json\n%s\n```"
)
CHOICE = {
    "required": "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.",
    "none": "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.",
}
RESPONSE = (
    "The system is invoked with `response_format=%s`.\nYour response must be raw JSON data without markdown code "
    "blocks (```json) or any additional formatting."
)
SCHEMA = "\nThe JSON data must match the following schema:\n```json\n%s\n```"


def compact(value):
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def flatten(nodes):
    for node in nodes:
        if isinstance(node, str):
            if node:
                yield node, False
            continue
        tag, attributes, children = node
        yield from opened(tag, attributes)
        yield from flatten(children)
        yield CLOSE, True
        yield tag, False
        yield SEP, True
        if tag == "message":
            yield END, True


def opened(tag, attributes):
    yield OPEN, True
    yield tag, False
    for key, value in attributes.items():
        escaped = str(value).replace("&", "&amp;").replace('"', "&quot;")
        yield from ((piece, False) for piece in (f" {key}", '="', escaped, '"') if piece)
    yield SEP, True


def notice(kind, text):
    return "message", {"role": "system", "type": kind}, [text]


def content_of(message):
    content = message.get("content") or ""
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def kind_of(value):
    kinds = {bool: "boolean", type(None): "null", int: "number", float: "number", str: "string", dict: "object"}
    return kinds.get(type(value), "array")


def call_node(index, call):
    function = call.get("function", call)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except json.JSONDecodeError:
            arguments = ("json", {"type": "object"}, [arguments])
        if isinstance(arguments, str):
            arguments = ("json", {"type": "object"}, [arguments])
    if isinstance(arguments, tuple):
        children = [arguments]
    else:
        children = [
            ("argument", {"key": k, "type": kind_of(v)},
             [v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)])
            for k, v in arguments.items()
        ]
    return "call", {"tool": function["name"], "index": index}, children


def assistant_nodes(message, thinking):
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    if thinking:
        yield "think", {}, [reasoning] if reasoning.strip() else []
    yield "response", {}, content_of(message)
    calls = message.get("tool_calls")
    if calls:
        yield "tools", {}, [call_node(i, call) for i, call in enumerate(calls, 1)]


def name_of(call):
    return call.get("function", call)["name"]


def in_order_of_calls(messages):
    """Runs of tool results that all name a call of the assistant before them, sorted by it and named after it."""
    out, calls, run = [], [], []

    def end_run():
        ids = {}
        for place, call in enumerate(calls):
            ids.setdefault(call.get("id"), place)
        ids.pop(None, None)
        places = [ids.get(m.get("tool_call_id", m.get("id"))) for m in run]
        if None not in places:
            for place, _, message in sorted(zip(places, range(len(run)), run), key=lambda x: x[:2]):
                out.append(message | {"tool": name_of(calls[place])})
        else:
            out.extend(run)
        run.clear()

    for message in messages:
        if message["role"] == "tool":
            run.append(message)
            continue
        end_run()
        if message["role"] == "assistant":
            calls = message.get("tool_calls") or []
        out.append(message)
    end_run()
    return out


def message_nodes(messages, thinking):
    calls, index = [], 0
    for message in in_order_of_calls(messages):
        role = "system" if message["role"] == "developer" else message["role"]
        if role == "tool":
            index += 1
            tool = message.get("tool") or message.get("name") or name_of(calls[index - 1])
            yield "message", {"role": role, "tool": tool, "index": index}, content_of(message)
            continue
        if role == "system" and message.get("tools"):
            yield notice("tool-declare", NEW_TOOLS % compact(message["tools"]))
            continue
        attributes = {"role": role} | ({"name": message["name"]} if message.get("name") else {})
        if role == "assistant":
            calls, index = message.get("tool_calls") or [], 0
            yield "message", attributes, list(assistant_nodes(message, thinking))
        else:
            yield "message", attributes, content_of(message)


def response_notice(response_format):
    kind = response_format if isinstance(response_format, str) else response_format.get("type")
    if kind == "json_object":
        yield notice("response-format", RESPONSE % kind)
    elif kind == "json_schema":
        schema = response_format["json_schema"]
        schema = schema.get("schema", schema.get("json_schema", schema))
        yield notice("response-format", RESPONSE % kind + SCHEMA % compact(schema))


def render(messages, tools=None, extra=None, prompt=True):
    extra = extra or {}
    thinking = extra.get("thinking", extra.get("enable_thinking", True))
    effort = extra.get("thinking_effort", "max")
    nodes = []
    if tools:
        nodes.append(notice("tool-declare", TOOLS % compact(tools)))
    if thinking and effort:
        nodes.append(notice("thinking-effort", EFFORT % effort))
    nodes += message_nodes(messages, thinking)
    if extra.get("tool_choice") in ("required", "none"):
        nodes.append(notice("tool-choice", CHOICE[extra["tool_choice"]]))
    nodes += response_notice(extra.get("response_format") or {})
    segments = list(flatten(nodes))
    if prompt:
        segments += [*opened("message", {"role": "assistant"}), *opened("think" if thinking else "response", {})]
    return segments
