"""Random conversations and chat templates, for templates_random.py and templates_own.py."""
import json

from template_programs import KEYS, TEXTS

CONTENTS = TEXTS + ["What is 2+2?", "<think>\nhm\n</think>\n\nFour.", "<think>a</think>b<think>c</think>d", "\n\nlead", "trail\n\n", "<tool_call>{}</tool_call>", "[INST] x [/INST]", "<|im_end|>",
                    "{{ messages }}", "/no_think hi", "x /think", "<tool_response>\nr\n</tool_response>", "{\"a\": [1, 2.0, null]}", "Be brief.\n- a\n- b"]


CONTENT = "['content']"


class Conversations:
    def __init__(self, r):
        self.r = r

    def value(self, depth=0):
        r = self.r
        kinds = [lambda: r.choice(CONTENTS), lambda: r.randint(-3, 10**r.choice([1, 3, 18, 25])), lambda: r.choice([0.5, 1.0, -2.5e-9, 1e21]), lambda: r.random() < 0.5, lambda: None]
        if depth < 3:
            kinds += [lambda: [self.value(depth + 1) for _ in range(r.randint(0, 3))], lambda: {r.choice(KEYS + ["location", "unité", "with space", "x\"y"]): self.value(depth + 1) for _ in range(r.randint(0, 4))}]
        return r.choice(kinds)()

    def schema(self, depth=0):
        r = self.r
        kind = r.choice(["string", "integer", "number", "boolean", "array", "object", "null", ["string", "null"], None])
        made = {} if kind is None else {"type": kind}
        if r.random() < 0.6:
            made["description"] = r.choice(CONTENTS)
        if r.random() < 0.15:
            made["enum"] = [self.value(3) for _ in range(r.randint(0, 3))]
        if r.random() < 0.1:
            made["nullable"] = r.random() < 0.5
        if r.random() < 0.1:
            made["default"] = self.value(2)
        if r.random() < 0.06 and depth < 2:
            made["oneOf"] = [self.schema(depth + 1) for _ in range(r.randint(1, 2))]
        if kind == "array" and r.random() < 0.8:
            made["items"] = self.schema(depth + 1) if depth < 2 else {"type": "string"}
        if kind == "object" and depth < 2:
            made["properties"] = {r.choice(KEYS + ["city", "ü"]): self.schema(depth + 1) for _ in range(r.randint(0, 3))}
            if r.random() < 0.5:
                made["required"] = list(made["properties"])[:1]
        return made

    def tool(self):
        r = self.r
        function = {"name": r.choice(["get_weather", "f", "brave_search", "now", "naïve fn", "search.flights"])}
        if r.random() < 0.9:
            function["description"] = r.choice(CONTENTS)
        if r.random() < 0.9:
            properties = {r.choice(["location", "unit", "x", "items", "n", "ü"]): self.schema(1) for _ in range(r.randint(0, 4))}
            function["parameters"] = {"type": "object", "properties": properties}
            if r.random() < 0.7:
                function["parameters"]["required"] = [k for k in properties if r.random() < 0.5]
            if r.random() < 0.1:
                function["parameters"]["$defs"] = {"T": self.schema(2)}
        if r.random() < 0.2:
            function["return"] = self.schema(1)
        if r.random() < 0.1:
            function["strict"] = True
        return {"type": "function", "function": function} if r.random() < 0.9 else function

    def call(self):
        r = self.r
        arguments = {r.choice(["location", "unit", "x", "items"]): self.value(1) for _ in range(r.randint(0, 3))}
        function = {"name": r.choice(["get_weather", "f", "brave_search", "python"]), "arguments": arguments if r.random() < 0.7 else json.dumps(arguments)}
        if r.random() < 0.05:
            del function["arguments"]
        if r.random() < 0.15:
            return function
        call = {"type": "function", "function": function}
        if r.random() < 0.7:
            call = {"id": r.choice(["abcdef123", "123456789", "call_1", "", "x"]), **call} if r.random() < 0.8 else {**call, "id": 5}
        return call

    def parts(self):
        r = self.r
        kinds = [lambda: {"type": "text", "text": r.choice(CONTENTS)}] * 5 + [lambda: {"type": "image"}, lambda: {"type": "image_url", "image_url": {"url": "u"}}, lambda: "plain", lambda: {"text": "no type"}, lambda: {"type": "text"},
                                                                            lambda: {"type": "audio"}, lambda: {"type": "video"}, lambda: {"type": "text", "text": r.choice(CONTENTS), "x": 1}]
        return [r.choice(kinds)() for _ in range(r.choice([0, 1, 1, 1, 2, 2, 3]))]

    def content(self):
        r = self.r
        pick = r.random()
        return r.choice(CONTENTS) if pick < 0.82 else self.parts() if pick < 0.93 else None if pick < 0.96 else self.value()

    def message(self, role):
        r = self.r
        message = {"role": role, "content": self.content()}
        if role == "assistant":
            if r.random() < 0.25:
                message["tool_calls"] = [self.call() for _ in range(r.choice([0, 1, 1, 1, 2]))] if r.random() < 0.95 else None
                if r.random() < 0.5:
                    message["content"] = r.choice([None, ""])
            if r.random() < 0.2:
                message[r.choice(["reasoning_content", "thinking", "reasoning"])] = r.choice(CONTENTS + [None])
        if role in ("tool", "ipython"):
            message.update({k: v for k, v in (("name", "get_weather"), ("tool_call_id", r.choice(["abcdef123", "123456789", "x"]))) if r.random() < 0.7})
        if r.random() < 0.05:
            message[r.choice(["name", "weight", "train", "tool_plan", "prefix", "citations", "images"])] = self.value(2)
        if r.random() < 0.03:
            message.pop(r.choice(list(message)))
        if r.random() < 0.05:
            message = dict(sorted(message.items(), key=lambda _: r.random()))
        return message

    def case(self):
        r = self.r
        roles = ["system"] if r.random() < 0.4 else []
        if r.random() < 0.75:  # in order
            for _ in range(r.randint(1, 3)):
                roles.append("user")
                while r.random() < 0.2:
                    roles += ["assistant", "tool"]
                roles.append("assistant")
            if r.random() < 0.6:
                roles.append("user")
        else:
            roles += [r.choice(["user", "assistant", "system", "tool", "user", "assistant", "developer", "ipython", "function", "critic", "User", "model", "observation"]) for _ in range(r.randint(1, 5))]
        case = {"messages": [self.message(role) for role in roles], "add_generation_prompt": r.random() < 0.5}
        if r.random() < 0.4:
            case["tools"] = [self.tool() for _ in range(r.choice([0, 1, 1, 2, 3]))]
        if r.random() < 0.08:
            case["documents"] = [{"title": r.choice(CONTENTS), "text": r.choice(CONTENTS), **({"id": 3} if r.random() < 0.3 else {})} for _ in range(r.randint(0, 2))]
        if r.random() < 0.08 and not case["add_generation_prompt"]:
            case["continue_final_message"] = True
        names = ["enable_thinking", "thinking", "date_string", "builtin_tools", "tools_in_user_message", "reasoning_effort", "xml_tools", "custom_tools", "preserve_thinking", "keep_past_thinking", "documents_format", "add_vision_id",
                 "model_identity", "clear_thinking", "truncate_history_thinking", "citation_mode", "python_tools", "today", "default_system_message", "skip_think", "available_tools"]
        if r.random() < 0.3:
            case["chat_template_kwargs"] = {name: r.choice([True, False, None, "low", "26 Jul 2024", ["python"], [], {}, 3]) if name not in ("tools",) else None for name in r.sample(names, r.randint(1, 3))}
        return case


def chat_templates(r):
    """A chat template from the constructs that published ones are made of: where the system message goes, tools, calls, answers of tools,
    thoughts, parts, dates, checks of the order of roles."""
    dash = r.choice(["", "-"])
    o, c = "{%" + dash + " ", " " + r.choice(["", "-"]) + "%}"
    po, pc = "{{" + dash + " ", " }}"
    nl = r.choice(["", "\n", "\n    "])
    start, end = r.choice([("'<|im_start|>'", "'<|im_end|>\\n'"), ("'<|start_header_id|>'", "'<|eot_id|>'"), ("'<start_of_turn>'", "'<end_of_turn>\\n'"), ("bos_token", "eos_token"), ("'<|'", "'|>' + eos_token + '\\n'"), ("'[|'", "'[|endofturn|]\\n'")])
    out = r.choice(["", po + "bos_token" + pc, "{# made of parts #}\n", "{{- '' }}", "\n"])
    source = "messages"
    parts = []
    if r.random() < 0.4:
        parts.append(o + "if not date_string is defined" + c + nl + o + "set date_string = " + r.choice(["strftime_now('%d %b %Y')", "'26 Jul 2024'", "strftime_now('%Y-%m-%d') if strftime_now is defined else 'x'"]) + c + nl + o + "endif" + c + po + "'Today: ' + date_string" + r.choice(["", " ~ '\\n'"]) + pc)
    if r.random() < 0.3:
        parts.append(o + "if not tools is defined" + c + o + "set tools = none" + c + o + "endif" + c)
    if r.random() < 0.3:
        parts.append(o + "set enable_thinking = enable_thinking | default(true)" + c)
    system = r.random()
    if system < 0.35:
        source = "loop_messages"
        trim = r.choice(["", "|trim", ".strip()", " | string", "|default('')"])
        parts.append(o + r.choice(["if messages[0]['role'] == 'system'", "if messages[0].role == \"system\"", "if messages and messages[0]['role'] in ['system', 'developer']"]) + c + nl + o + f"set system_message = messages[0]{r.choice(['.content', CONTENT])}{trim}" + c + nl
                     + o + "set loop_messages = messages[1:]" + c + nl + o + "else" + c + nl + o + 'set system_message = ' + r.choice(["''", 'none', 'false', "'You are helpful.'"]) + c + nl + o + "set loop_messages = messages" + c + nl + o + "endif" + c)
    elif system < 0.6:
        source = "ns.rest"
        parts.append(o + "set ns = namespace(system='', rest=[], found=false)" + c + nl + o + "for message in messages" + c + nl + o + "if message['role'] == 'system'" + c + nl + o
                     + r.choice(["set ns.system = ns.system + message['content']", "set ns.system = message.content", "set ns.system = ns.system ~ (message.content or '') ~ '\\n'"]) + c + nl + o + "set ns.found = true" + c + nl + o + "else" + c + o + "set ns.rest = ns.rest + [message]" + c + nl + o + "endif" + c + nl + o + "endfor" + c)
    if r.random() < 0.5:
        parts.append(o + r.choice(["if tools", "if tools is not none", "if tools is defined and tools", "if tools is iterable and tools | length > 0", "if tools is not none and tools|length > 0"]) + c + nl + po + start + " + 'system\\nTools:\\n'" + pc + nl + o + "for tool in tools" + c + nl
                     + po + r.choice(["tool | tojson", "tool | tojson(indent=4)", "tool.function | tojson if tool.function else tool|tojson", "tool['function'] | tojson(ensure_ascii=false)", "'- ' ~ tool.function.name ~ ': ' ~ tool.function.description", "tool|tojson(separators=(',', ':'))", "tool.function.parameters.properties | dictsort", "render_tool(tool)"])
                     + pc + r.choice(["", po + "'\\n'" + pc, o + "if not loop.last" + c + po + "', '" + pc + o + "endif" + c]) + nl + o + "endfor" + c + nl + po + end + pc + o + "endif" + c)
        if "render_tool" in parts[-1]:
            macro = o + "macro render_type(spec, level=0)" + c + nl + o + "if spec.type == 'array'" + c + nl + o + "if spec['items']" + c + po + "render_type(spec['items'], level + 1) + '[]'" + pc + o + "else" + c + "any[]" + o + "endif" + c + o + "elif spec.type == 'object'" + c
            macro += "{" + o + "for name, inner in spec.properties.items()" + c + po + "name" + pc + o + "if not name in (spec.required or [])" + c + "?" + o + "endif" + c + ": " + po + "render_type(inner)" + pc + o + "if not loop.last" + c + ", " + o + "endif" + c + o + "endfor" + c + "}"
            macro += o + "elif spec.enum" + c + po + "spec.enum | map('tojson') | join(' | ')" + pc + o + "else" + c + po + "spec.type | default('any') | string" + pc + o + "endif" + c + o + "endmacro" + c
            macro += o + "macro render_tool(tool)" + c + nl + po + "'type ' ~ (tool.function or tool).name ~ ' = (_: '" + pc + po + "render_type((tool.function or tool).parameters or {})" + pc + ") => any;" + o + "endmacro" + c
            parts.insert(0, macro)
    text_of = "message['content']"
    if r.random() < 0.5:
        text_of = "content"
        get = o + "if message.content is string" + c + nl + o + "set content = message.content" + r.choice(["", "|trim", ".strip()", ".lstrip('\\n')"]) + c + nl + o + r.choice(["elif message.content is iterable", "elif message.content is sequence", "elif message.content is not none and message.content is not mapping", "else"]) + c + nl
        get += o + "set content" + c + o + "for part in message.content" + c + nl + o + r.choice(["if part.type == 'text'", "if part is mapping and 'text' in part", "if part['type'] in ['text', 'input_text']"]) + c + po + "part.text" + pc + o + r.choice(["elif part.type == 'image' or 'image_url' in part", "elif part.type == 'image'"]) + c + "<image>"
        get += o + "else" + c + po + r.choice(["raise_exception('Unknown part')", "raise_exception('part ' ~ part)", "''"]) + pc + o + "endif" + c + o + "endfor" + c + o + "endset" + c + nl + o + "endif" + c
    else:
        get = ""
        text_of = r.choice(["message['content']", "message.content", "message['content'] | trim", "message['content'].strip()", "(message.content or '')", "message.content|default('', true)", "message.get('content', '')"])
    loop = o + f"for message in {source}" + r.choice(["", "", " if message.role != 'critic'"]) + c + nl
    check = r.random()
    if check < 0.25:
        loop += o + r.choice(["if (message['role'] == 'user') != (loop.index0 % 2 == 0)", "if (message.role == 'user') != (loop.index0 is even)"]) + c + nl + po + "raise_exception('Conversation roles must alternate user/assistant/user/assistant/...')" + pc + nl + o + "endif" + c + nl
    elif check < 0.4:
        loop += o + "if loop.previtem is defined and loop.previtem.role == message.role" + c + po + "raise_exception('Two ' + message.role + ' messages in a row')" + pc + o + "endif" + c
    loop += get
    if r.random() < 0.3:
        loop += o + "if message['role'] == 'assistant'" + c + o + "set role = 'model'" + c + o + "else" + c + o + "set role = message['role']" + c + o + "endif" + c
        role = "role"
    else:
        role = r.choice(["message['role']", "message.role", "message.role|title", "message['role'].upper()"])
    loop += o + r.choice(["if message['role'] == 'user'", "if message.role == 'user' or message.role == 'system' and not loop.first", "if message.role in ('user', 'system', 'developer')"]) + c + nl + po + f"{start} + {role} + '\\n' + {text_of} + {end}" + pc + nl
    if r.random() < 0.6:
        thought = r.choice(["", o + "if message.reasoning_content is defined and message.reasoning_content is not none" + c + po + "'<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n'" + pc + o + "endif" + c,
                            o + "if '</think>' in (message.content or '')" + c + po + "message.content.split('</think>')[-1].lstrip('\\n')" + pc + o + "endif" + c,
                            o + "if message.thinking" + c + po + "message.thinking|indent(2)" + pc + o + "endif" + c])
        calls = o + r.choice(["if message.tool_calls", "if message['tool_calls'] is defined and message['tool_calls'] is not none", "if 'tool_calls' in message and message.tool_calls|length"]) + c + nl + o + "for tool_call in message.tool_calls" + c + nl + o + "if tool_call.function" + c + o + "set tool_call = tool_call.function" + c + o + "endif" + c
        calls += po + "'<tool_call>{\"name\": \"' + tool_call.name + '\", \"arguments\": '" + pc + o + "if tool_call.arguments is string" + c + po + "tool_call.arguments" + pc + o + "else" + c + po + r.choice(["tool_call.arguments | tojson", "tool_call.arguments|tojson(indent=2)", "tool_call['arguments'] | items | list"]) + pc + o + "endif" + c + "}</tool_call>"
        calls += r.choice(["", o + "if not loop.last" + c + "\n" + o + "endif" + c]) + o + "endfor" + c + nl + o + r.choice(["else", "elif message.content"]) + c + nl
        answer = po + f"{text_of}" + r.choice(["", " + " + end]) + pc
        if r.random() < 0.5:
            answer = "{%" + dash + " generation" + c + answer + "{%" + dash + " endgeneration" + c
        loop += o + "elif message['role'] == 'assistant'" + c + nl + po + start + " + 'assistant\\n'" + pc + thought + calls + answer + o + "endif" + c + po + end + pc
    if r.random() < 0.5:
        loop += o + r.choice(["elif message['role'] == 'tool'", "elif message.role == 'tool' or message.role == 'ipython'", "elif message.role in ['tool', 'ipython', 'function']"]) + c + nl
        loop += o + r.choice(["if loop.first or (messages[loop.index0 - 1].role != 'tool')", "if loop.previtem is undefined or loop.previtem.role != 'tool'"]) + c + po + start + " + 'user'" + pc + o + "endif" + c
        loop += po + r.choice(["'<tool_response>\\n' + " + text_of, "message.content | tojson", "({'output': message.content} if message.content is mapping or message.content is iterable else message.content) | tojson", "message.name ~ ': ' ~ message.content", "message['tool_call_id']|string + '|'"]) + pc
        loop += o + r.choice(["if loop.last or (messages[loop.index0 + 1].role != 'tool')", "if loop.nextitem is not defined or loop.nextitem.role != 'tool'"]) + c + po + end + pc + o + "endif" + c
    if r.random() < 0.5:
        loop += o + "else" + c + nl + po + r.choice(["raise_exception('Unexpected message role: ' + message['role'])", "raise_exception('Only user and assistant roles are supported!')", f"{start} ~ message"]) + pc
    loop += o + "endif" + c + nl + o + "endfor" + c
    used = ("system_message" if source == "loop_messages" else "ns.system") if source != "messages" else None
    if used:
        parts.append(o + r.choice([f"if {used}", f"if {used} is not none", f"if {used}|length"]) + c + po + f"{start} + 'system\\n' + {used} + {end}" + pc + o + "endif" + c)
    tail = o + r.choice(["if add_generation_prompt", "if add_generation_prompt is defined and add_generation_prompt", "if add_generation_prompt and messages[-1].role != 'assistant'"]) + c + nl + po + start + " + 'assistant\\n'" + pc
    if r.random() < 0.3:
        tail += o + "if enable_thinking is defined and enable_thinking is false" + c + po + "'<think>\\n\\n</think>\\n\\n'" + pc + o + "endif" + c
    return out + nl.join(parts) + nl + loop + nl + tail + nl + o + "endif" + c + r.choice(["", "\n"])
