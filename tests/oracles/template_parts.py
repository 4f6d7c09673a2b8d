"""What templates_random.py puts together: Jinja programs, chat templates and conversations."""
import json

TEXTS = ["", "a", "abc", "Hello World", "  pad \n", "x,y,,z", "it's \"q\" <&>", "é ñ Ü", "日本 語", "😀a\u0301", "ǅ ß İ", "1", " 42 ", "-3.5", "0x1f", "1_0",
         "line1\nline2\r\nline3", "\t tab", "a b  c", "%s and %d", "{} {0}", "{a}", "UPPER lower", "aXbXc", "nan", "1e3", "\u00a0x\u3000", "don't-stop_me now",
         "<b>x</b> &amp; y", "</think>rest", "a/b?c=d&e f", "true", "None", "٣", "½", "\u2028z", "ﬁ", "ΑΣ", "x" * 30]
KEYS = ["a", "b", "c", "role", "content", "items", "get", "n", "type", "name", "zz"]
NAMES = ["s", "e", "n", "t", "f", "i", "x", "l", "w", "d", "q", "m", "messages", "tools", "bos_token", "v", "y", "nested", "pairs", "big"] * 2 + ["undefined_thing"]


class Programs:
    """Programs of random statements and expressions; mostly of fitting types."""

    def __init__(self, r):
        self.r = r
        self.macros = 0
        self.in_loop = 0
        self.space = False

    def pick(self, *options):
        option = self.r.choice(options)
        return option() if callable(option) else option

    # ---- values ----

    def literal(self, value):
        """A string literal of Jinja."""
        quote = self.r.choice("'\"")
        out = value.replace("\\", "\\\\").replace(quote, "\\" + quote)
        if self.r.random() < 0.5:
            out = out.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
        return quote + out + quote

    def json(self, depth=0):
        r = self.r
        kinds = [lambda: r.choice(TEXTS), lambda: r.randint(-5, 12), lambda: r.choice([0.5, -1.25, 2.0, 1e-7, 1e22, 3.999, 100.0]), lambda: r.random() < 0.5,
                 lambda: None]
        if depth < 3:
            kinds += [lambda: [self.json(depth + 1) for _ in range(r.randint(0, 3))],
                      lambda: {r.choice(KEYS): self.json(depth + 1) for _ in range(r.randint(0, 3))}]
        return r.choice(kinds)()

    def variables(self):
        r = self.r
        return {"s": r.choice(TEXTS), "e": "", "n": None, "t": True, "f": False, "i": r.randint(-3, 20), "x": r.choice([2.5, -0.5, 3.0, 1e16]),
                "l": [r.randint(-3, 9) for _ in range(r.randint(0, 5))], "w": [r.choice(TEXTS) for _ in range(r.randint(0, 5))],
                "d": {k: self.json(1) for k in r.sample(KEYS, r.randint(0, 5))}, "q": "it's \"q\" <&>",
                "m": [{"role": r.choice(["user", "assistant", "tool"]), "content": r.choice(TEXTS), **({"n": r.randint(0, 3)} if r.random() < 0.6 else {})}
                      for _ in range(r.randint(0, 4))],
                "nested": self.json(), "pairs": [[r.choice(KEYS), r.randint(0, 9)] for _ in range(r.randint(0, 3))],
                "big": r.choice([12345678901234567890, 2**62, 10**30, -(2**63)])}

    # ---- expressions ----

    def any(self, depth=3):
        r = self.r
        if depth <= 0:
            return self.pick(lambda: r.choice(NAMES), lambda: self.literal(r.choice(TEXTS)), lambda: str(r.randint(0, 9)), "none", "true", "[]", "{}", "1.5")
        return r.choice([self.text, self.text, self.number, self.sequence, self.sequence, self.mapping, self.boolean, self.choice, self.reach])(depth - 1)

    def odd(self, depth, kind):
        """An expression of the wrong type, seldom."""
        return self.any(depth) if self.r.random() < 0.015 else kind(depth)

    def choice(self, depth):
        r = self.r
        a, b, c = self.any(depth), self.boolean(depth), self.any(depth)
        return r.choice([f"({a} if {b} else {c})", f"({a} if {b})", f"({a} or {c})", f"({a} and {c})", f"{self.atom(depth)}|default({c})",
                         f"{self.atom(depth)}|default({c}, true)", f"{r.choice(NAMES)}|d({c}, boolean=true)"])

    def reach(self, depth):
        r = self.r
        base = r.choice(["d", "m[0]", "m[-1]", "nested", "messages[0]", "d.c", "l", "w", "s", "undefined_thing", "pairs", "m|first", "loop", "ns"])
        base = f"({base})" if "|" in base else base
        key = r.choice(KEYS)
        return r.choice([f"{base}.{key}", f"{base}['{key}']", f"{base}[{r.randint(-3, 3)}]", f"{base}[{self.any(depth - 1)}]", f"{base}.get('{key}')",
                         f"{base}.get('{key}', {self.any(depth - 1)})", f"{base}|attr('{key}')", f"{base}|last", f"{base}|first", f"{base}[{self.slice(depth)}]"])

    def slice(self, depth):
        part = lambda: self.r.choice(["", "", str(self.r.randint(-4, 4)), "i", "big", "none"])
        return f"{part()}:{part()}" + (f":{self.r.choice(['', '1', '-1', '2', '-2', '3', '0'])}" if self.r.random() < 0.4 else "")

    def atom(self, depth):
        """Something that a filter or a method can follow."""
        made = self.any(depth - 1)
        return made if made.isidentifier() and made not in ("not",) else f"({made})"

    def text(self, depth=2):
        r = self.r
        if depth <= 0:
            return r.choice([self.literal(r.choice(TEXTS)), self.literal(r.choice(TEXTS)), "s", "q", "e", "bos_token"])
        t = lambda: self.odd(depth - 1, self.text)
        n = lambda: self.odd(depth - 1, self.number)
        o = lambda: f"({t()})"
        small = lambda: str(r.randint(-1, 12))
        return self.pick(
            lambda: f"({t()} ~ {self.any(depth - 1)})", lambda: f"({t()} + {t()})", lambda: f"({t()} * {r.randint(-1, 3)})", lambda: f"{o()}[{self.slice(depth)}]",
            lambda: f"{o()}[{small()}]", lambda: f"{o()}|{r.choice(['upper', 'lower', 'title', 'capitalize', 'trim', 'string', 'e', 'safe', 'forceescape', 'escape', 'striptags', 'urlencode', 'reverse', 'first', 'last', 'tojson', 'indent', 'wordcount', 'list', 'length', 'count', 'int', 'float', 'unique|join', 'sort|join', 'pprint', 'min', 'max', 'center'])}",
            lambda: f"{o()}.{r.choice(['upper', 'lower', 'title', 'capitalize', 'strip', 'lstrip', 'rstrip', 'swapcase', 'casefold', 'expandtabs', 'split', 'splitlines', 'isdigit', 'isalpha', 'istitle', 'isupper', 'islower', 'isspace', 'isalnum', 'isnumeric', 'isdecimal', 'isidentifier', 'isprintable', 'isascii', 'rsplit'])}()",
            lambda: f"{o()}.{r.choice(['strip', 'lstrip', 'rstrip', 'split', 'rsplit', 'partition', 'rpartition', 'find', 'rfind', 'index', 'rindex', 'count', 'startswith', 'endswith', 'removeprefix', 'removesuffix', 'join'])}({t()})",
            lambda: f"{o()}.replace({t()}, {t()}{r.choice(['', ', 1', ', -1', ', 0', ', count=1'])})", lambda: f"{o()}|replace({t()}, {t()}{r.choice(['', ', 1', ', count=2'])})",
            lambda: f"{o()}.split({t()}, {r.choice(['0', '1', '2', '-1', 'maxsplit=1'])}){r.choice(['', '[0]', '[-1]', '[1]', '|length'])}",
            lambda: f"{o()}.{r.choice(['center', 'ljust', 'rjust'])}({small()}{r.choice(['', ', ' + self.literal(r.choice('*é ab'))])})", lambda: f"{o()}.zfill({small()})",
            lambda: f"{o()}.{r.choice(['find', 'count', 'startswith', 'index'])}({t()}, {small()}{r.choice(['', ', ' + small()])})",
            lambda: f"{o()}|indent({r.choice(['2', 'width=3', self.literal('> '), 'first=true', '1, true', '2, blank=true', '2, true, true'])})",
            lambda: f"{o()}|truncate({r.choice(['3', '5', '8', '5, true', '6, false, ' + self.literal('..'), '4, true, ' + self.literal(''), '5, leeway=0', 'length=7, killwords=true, end=' + self.literal('…')])})",
            lambda: f"{o()}|wordwrap({r.choice(['3', '5', '10', '4, false', '5, wrapstring=' + self.literal('|'), '6, break_on_hyphens=false'])})",
            lambda: f"{o()}|trim({t()})", lambda: f"{o()}|center({small()})", lambda: f"{self.odd(depth - 1, self.sequence)}|join({r.choice(['', t(), self.literal(', ')])})",
            lambda: f"{self.atom(depth)}|string", lambda: self.tojson(depth), lambda: self.tojson(depth), lambda: self.percent(depth),
            lambda: self.braces(depth), lambda: f"strftime_now({self.literal(r.choice(['%Y-%m-%d', '%d %b %Y', '%B %d, %Y', '%H:%M:%S', '%A %j', '%-d %y', '%I %p', '%x %X', '%c', '%U %w', '%%', '%e', '%G-W%V', '%f', '%z|%Z', '%q', 'x']))})",
            lambda: f"{self.literal(r.choice(['<', ' ', '', 'ab']))}.join({self.odd(depth - 1, self.sequence)})", lambda: f"{o()}|format({self.any(depth - 1)})",
            lambda: f"{self.mapping(depth - 1)}|xmlattr", lambda: f"{n()}|filesizeformat({r.choice(['', 'true'])})")

    def tojson(self, depth):
        r = self.r
        options = r.sample(["indent=" + r.choice(["0", "1", "2", "4", "none", "-1", self.literal("\t"), "true"]), "ensure_ascii=" + r.choice(["true", "false"]), "sort_keys=" + r.choice(["true", "false"]),
                            "separators=" + r.choice(["(',', ':')", "(', ', ': ')", "[',', ': ']", "none", "('', '')"])], r.choice([0, 0, 0, 1, 1, 2, 3]))
        if r.random() < 0.05:
            options = [r.choice(["true", "false", "2", "false, 2", "foo=1", "false, 2, none, true"])]
        return f"{self.atom(depth)}|tojson" + (f"({', '.join(options)})" if options else "")

    def percent(self, depth):
        r = self.r
        a, b = self.any(depth - 1), self.number(depth - 1)
        return r.choice([f"('%s' % ({a}))", f"('%s-%s' % ({a}, {b}))", f"('%d' % ({b}))", f"('%5.2f|' % ({b}))", f"('%r' % ({a}, ))", f"('%-6s|' % ({a}, ))", f"('%x' % {r.randint(0, 300)})",
                         f"('%(a)s' % {{'a': {a}}})", f"('%03d%%' % {r.randint(-20, 20)})", f"('%e' % ({b}))", f"('%g' % ({b}))", f"('%c' % {r.randint(60, 90)})", f"('%+d' % ({b}))", f"('%a' % ({a}, ))"])

    def braces(self, depth):
        r = self.r
        a, b = self.any(depth - 1), self.number(depth - 1)
        spec = r.choice(["", ":>8", ":<5", ":^7", ":05", ":.2f", ":,", ":+", ":e", ":g", ":x", ":b", ":*^9", ":.1%", "!r", "!s", "!a", ":8.3", ":d", ":_", ":n", ":s", ":>{1}", "[0]", "[a]", ".a"])
        return r.choice([f"'{{{spec}}}'.format({b})", f"'{{0{spec}}} {{0}}'.format({a}, {b})", f"'{{k{spec}}}'.format(k={b})", f"'{{}}-{{}}'.format({a}, {b})", f"'{{{{x}}}} {{{spec}}}'.format({a})"])

    def number(self, depth=2):
        r = self.r
        if depth <= 0:
            return r.choice([str(r.randint(0, 12)), str(r.randint(0, 12)), "i", "x", "1.5", "0.1", "2e3", "1_000", "big", "0", "-1", "true", "0x1F", "0b101", "0o17", "1E-2"])
        n = lambda: self.odd(depth - 1, self.number)
        o = lambda: f"({n()})"
        return self.pick(
            lambda: f"({n()} {r.choice('+-*')} {n()})", lambda: f"({n()} {r.choice(['/', '//', '%'])} {n()})", lambda: f"({n()} ** {r.randint(-2, 4)})", lambda: f"(-{o()})", lambda: f"(+{o()})",
            lambda: f"{o()}|abs", lambda: f"{o()}|round", lambda: f"{o()}|round({r.choice(['1', '2', '-1', '0, ' + self.literal('floor'), '1, ' + self.literal('ceil'), 'precision=3', '3, ' + self.literal('floor')])})",
            lambda: f"{o()}|int", lambda: f"{o()}|float", lambda: f"({self.text(depth - 1)})|int({r.choice(['', '7', 'default=3', '0, 16', 'base=2', '0, 0', 'none'])})",
            lambda: f"({self.text(depth - 1)})|float({r.choice(['', '1.5', 'default=none'])})", lambda: f"({self.odd(depth - 1, self.sequence)})|{r.choice(['length', 'count', 'sum', 'max', 'min', 'first', 'last'])}",
            lambda: f"({self.odd(depth - 1, self.sequence)})|sum({r.choice(['start=1', 'attribute=' + self.literal('n'), self.literal('n') + ', 2', 'start=0.5'])})", lambda: r.choice(["loop.index", "loop.index0", "loop.length", "loop.revindex", "loop.depth"]) if self.in_loop else "i",
            lambda: f"{o()}.{r.choice(['real', 'imag', 'bit_length()', 'is_integer()', 'numerator', 'conjugate()'])}", lambda: "ns.k" if self.space else "x")

    def sequence(self, depth=2):
        r = self.r
        if depth <= 0:
            return r.choice(["l", "w", "m", "pairs", "[1, 2, 3]", "['b', 'A', 'c']", "[]", "(1, 'a')", "range(3)", "messages", "()", "[none, 0, '']", "('x',)", "[[1, 2], [3]]"])
        s = lambda: f"({self.odd(depth - 1, self.sequence)})"
        a = lambda: self.any(depth - 1)
        attribute = lambda: self.literal(r.choice(["role", "content", "n", "0", "a", "role.0", "content.x", "items"]))
        test = lambda: r.choice(["'odd'", "'string'", "'defined'", "'none'", "'gt', 1", "'equalto', 'user'", "'in', ['user', 2]", "'ne', 'user'", "'mapping'", "'lt', 'b'", "'number'", "'true'", "'nosuch'", "'eq', none", "'sameas', none", "'divisibleby', 2", "'lower'"])
        return self.pick(
            lambda: f"[{', '.join(a() for _ in range(r.randint(0, 4)))}]", lambda: f"[{a()} , {a()},]", lambda: f"({a()}, {a()})", lambda: f"({s()} + {s()})", lambda: f"({s()} * {r.randint(-1, 2)})",
            lambda: f"{s()}[{self.slice(depth)}]", lambda: f"range({r.choice([str(r.randint(-2, 5)), 'i', '1, 7, 2', '5, 0, -2', '2, 4', '0', self.number(0)])})" + r.choice(["", "|list", "[1:]", "[-1]", "|reverse|list"]),
            lambda: f"{s()}|list", lambda: f"{s()}|{r.choice(['sort', 'unique', 'reverse', 'unique|list', 'reverse|list', 'items', 'items|list', 'select|list', 'reject|list', 'first', 'last', 'length'])}",
            lambda: f"{s()}|sort({r.choice(['true', 'reverse=true', 'attribute=' + attribute(), 'case_sensitive=true', 'false, true', 'attribute=' + self.literal('role,content')])})",
            lambda: f"{s()}|map(attribute={attribute()}{r.choice(['', ', default=' + a()])})|list", lambda: f"{s()}|map({self.literal(r.choice(['upper', 'string', 'length', 'first', 'trim', 'int', 'list', 'tojson', 'nosuch', 'abs', 'lower', 'title', 'default', 'last', 'float']))})|list",
            lambda: f"{s()}|map({self.literal(r.choice(['default', 'join', 'replace', 'round', 'indent', 'attr']))}, {a()})|list", lambda: f"{s()}|{r.choice(['select', 'reject'])}({test()})|list",
            lambda: f"{s()}|{r.choice(['selectattr', 'rejectattr'])}({attribute()}{r.choice(['', ', ' + test()])})|list", lambda: f"{s()}|batch({r.choice(['1', '2', '3', '2, ' + a(), '0', 'linecount=2, fill_with=' + a()])})|list",
            lambda: f"{s()}|slice({r.choice(['1', '2', '3', '2, ' + a()])})|list", lambda: f"{s()}|groupby({attribute()}{r.choice(['', ', default=' + a(), ', case_sensitive=true'])})|list",
            lambda: f"{s()}|unique({r.choice(['true', 'attribute=' + attribute()])})|list", lambda: f"{s()}|{r.choice(['min', 'max'])}({r.choice(['true', 'attribute=' + attribute(), 'case_sensitive=false'])})",
            lambda: f"({self.text(depth - 1)}).split({r.choice(['', self.literal(','), self.literal(' '), self.literal('x')])})", lambda: f"({self.text(depth - 1)}).splitlines({r.choice(['', 'true'])})",
            lambda: f"({self.odd(depth - 1, self.mapping)}).{r.choice(['items', 'keys', 'values'])}(){r.choice(['', '|list', '|sort', '|length', '|first', '|reverse|list'])}", lambda: f"({self.odd(depth - 1, self.mapping)})|{r.choice(['items|list', 'dictsort', 'list', 'dictsort(true)', 'dictsort(by=' + self.literal('value') + ')', 'dictsort(reverse=true)', 'length'])}",
            lambda: f"{s()}.{r.choice(['append', 'pop', 'index', 'count', 'copy', 'extend', 'insert'])}({r.choice(['', a()])})", lambda: f"{s()}|tojson")

    def mapping(self, depth=2):
        r = self.r
        if depth <= 0:
            return r.choice(["d", "m[0]", "{'a': 1, 'b': [2]}", "{}", "messages[0]", "{1: 'x', 'k': none}", "dict(a=1)", "nested"])
        a = lambda: self.any(depth - 1)
        key = lambda: r.choice([self.literal(r.choice(KEYS)), self.literal(r.choice(KEYS)), str(r.randint(0, 3)), "none", "true", "1.5", self.text(depth - 1), "(1, 2)"])
        return self.pick(lambda: "{" + ", ".join(f"{key()}: {a()}" for _ in range(r.randint(0, 4))) + r.choice(["", "", ","]) + "}" if r.random() < 0.9 else "{" + f"{key()}: {a()}" + ",}",
                         lambda: f"dict({self.odd(depth - 1, self.mapping)}, {r.choice(KEYS[:3])}={a()})", lambda: f"dict({r.choice(KEYS[:3])}={a()})", lambda: f"dict({r.choice(['pairs', a()])})",
                         lambda: f"dict(**{self.odd(depth - 1, self.mapping)})", lambda: f"({self.odd(depth - 1, self.mapping)}).copy()", lambda: f"({self.mapping(depth - 1)}).{r.choice(['update', 'pop', 'setdefault', 'clear'])}({a()})")

    def boolean(self, depth=2):
        r = self.r
        if depth <= 0:
            return r.choice(["t", "f", "true", "false", "n", "s", "l", "not t", "i", "undefined_thing", "tools", "add_generation_prompt"])
        a = lambda: f"({self.any(depth - 1)})" if r.random() < 0.6 else self.any(0)
        b = lambda: self.boolean(depth - 1)
        tests = ["defined", "undefined", "none", "string", "number", "mapping", "iterable", "sequence", "boolean", "integer", "float", "true", "false", "callable", "odd", "even", "lower", "upper", "escaped",
                 "divisibleby 2", "divisibleby(3)", "sameas none", "sameas true", "eq 1", "equalto 'a'", "ne 'user'", "gt 2", "in [1, 'a', none]", "in 'abc'", "lt(3)", "ge 0", "filter", "test", "nosuch"]
        return self.pick(
            lambda: f"({a()} {r.choice(['==', '!=', '==', '!=', '==', '!=', '<', '>='])} {a()})", lambda: f"({self.text(depth - 1)} {r.choice(['==', '<', '>', '<=', '>='])} {self.text(depth - 1)})", lambda: f"({a()} {r.choice(['in', 'not in'])} {self.odd(depth - 1, r.choice([self.sequence, self.mapping, self.text]))})",
            lambda: f"({a()} is {r.choice(['', 'not '])}{r.choice(tests)})", lambda: f"({a()} is {r.choice(['', 'not '])}{r.choice(tests[:10])})", lambda: f"(not {b()})", lambda: f"({b()} and {b()})", lambda: f"({b()} or {b()})",
            lambda: f"({a()} == {a()} != {a()})", lambda: f"({self.number(depth - 1)} {r.choice(['<', '<=', '>', '>='])} {self.number(depth - 1)} {r.choice(['<', '<=', '=='])} {self.number(depth - 1)})",
            lambda: f"({r.choice(KEYS)!r} in {self.odd(depth - 1, self.mapping)})", lambda: r.choice(["loop.first", "loop.last", "loop.changed(a)", "loop.previtem is defined", "loop.nextitem is undefined"]) if self.in_loop else "t")

    # ---- statements ----

    def opening(self):
        return "{%" + self.r.choice(["", "", "", "-", "-", "+"]) + self.r.choice([" ", " ", "", "\n  "])

    def closing(self):
        return self.r.choice([" ", " ", "", "\n"]) + self.r.choice(["", "", "", "-", "-", "+"]) + "%}"

    def tag(self, inside):
        return self.opening() + inside + self.closing()

    def data(self):
        return self.r.choice(["", "", " ", "\n", "text", "  \n", "\n\n", " x ", "\t", "<b>", "a\n  ", "é\n", "{", "}", "%", "# ", "\r\n", "|"])

    def output(self, depth=3):
        r = self.r
        return "{{" + r.choice(["", "", "-", "+" if r.random() < 0.2 else ""]) + " " + self.any(depth) + " " + r.choice(["", "", "-"]) + "}}"

    def target(self):
        return self.r.choice(["v", "y", "a", "b", "v", "y", "l", "messages"])

    def block(self, depth):
        return "".join(self.data() + self.statement(depth) + self.data() for _ in range(self.r.choice([1, 1, 2, 2, 3])))

    def statement(self, depth):
        r = self.r
        if depth <= 0:
            return self.pick(self.output, self.output, lambda: self.tag(f"set {self.target()} = {self.any(2)}"), self.data)
        inner = depth - 1
        kinds = [lambda: self.output(3), lambda: self.output(2), lambda: self.condition(inner), lambda: self.condition(inner), lambda: self.loop(inner), lambda: self.loop(inner), lambda: self.set(inner), lambda: self.set(inner),
                 lambda: self.macro(inner), lambda: "{#" + r.choice(["", "-"]) + r.choice([" c ", "\n{{ x }}\n", ""]) + r.choice(["", "-"]) + "#}", lambda: self.with_block(inner), lambda: self.filter_block(inner),
                 lambda: self.tag("generation") + self.block(inner) + self.tag("endgeneration"), lambda: self.tag("raw") + r.choice(["{{ x }}", " {% if %} ", "a\n", "{# #}"]) + self.tag("endraw"),
                 lambda: self.tag(f"if {self.boolean(1)}") + "{{ raise_exception(" + self.any(1) + ") }}" + self.tag("endif"), lambda: self.call_block(inner), lambda: self.namespace(inner)]
        if self.in_loop:
            kinds += [lambda: self.tag(f"if {self.boolean(1)}") + self.tag(r.choice(["break", "continue"])) + self.tag("endif")]
        return r.choice(kinds)()

    def condition(self, depth):
        out = self.tag(f"if {self.boolean(2)}") + self.block(depth)
        while self.r.random() < 0.3:
            out += self.tag(f"elif {self.boolean(2)}") + self.block(depth)
        if self.r.random() < 0.5:
            out += self.tag("else") + self.block(depth)
        return out + self.tag("endif")

    def loop(self, depth):
        r = self.r
        over, names = r.choice([(lambda: self.odd(2, self.sequence), "a"), (lambda: self.odd(2, self.sequence), "v"), (lambda: r.choice(["d", "nested", "m[0]", self.mapping(1)]) + r.choice([".items()", "|items", "|dictsort"]), "k, v"),
                                (lambda: r.choice(["pairs", self.sequence(1)]), "a, b"), (lambda: self.odd(1, self.text), "c"), (lambda: self.mapping(1), "k")])
        condition = f" if {self.boolean(2)}" if r.random() < 0.2 else ""
        recursive = " recursive" if r.random() < 0.05 else ""
        self.in_loop += 1
        body = self.block(depth)
        if recursive and r.random() < 0.7:
            body += self.tag("if loop.depth < 3") + "{{ loop(" + r.choice(["a", "v", "[1, 2]", "l"]) + ") }}" + self.tag("endif")
        self.in_loop -= 1
        shown = r.choice(["", "{{ loop.index }}", "{{ loop.last }}", "{{ loop.cycle('o', 'e') }}", "{{ " + names.split(",")[0] + " }}", "{{ loop.previtem }}", "{{ loop.nextitem }};", "{{ loop.revindex0 }}", "{{ loop }}"])
        out = self.tag(f"for {names} in {over()}{condition}{recursive}") + shown + body
        if r.random() < 0.2:
            out += self.tag("else") + self.block(depth)
        return out + self.tag("endfor")

    def set(self, depth):
        r = self.r
        pick = r.random()
        if pick < 0.6:
            return self.tag(f"set {self.target()} = {self.any(3)}")
        if pick < 0.7:
            return self.tag(f"set v, y = {r.choice(['1, 2', self.any(2) + ', ' + self.any(2), self.sequence(1)])}")
        filters = r.choice(["", "", " | trim", " | upper", " | replace('a', 'b')", " | trim | length"])
        return self.tag(f"set {self.target()}{filters}") + self.block(depth) + self.tag("endset")

    def namespace(self, depth):
        r = self.r
        if r.random() < 0.5 or not self.space:
            self.space = True
            return self.tag(f"set ns = namespace({r.choice(['', 'k=' + self.any(2), 'k=1, a=[]', self.mapping(1)])})")
        return self.pick(lambda: self.tag(f"set ns.{r.choice('kab')} = {self.any(2)}"), lambda: self.tag("set ns.k = ns.k + 1"), lambda: self.tag(f"set ns.{r.choice('kab')}") + self.block(depth) + self.tag("endset"),
                         "{{ ns.k }}", "{{ ns.zz is defined }}", "{{ ns['k'] }}", "{{ ns }}")

    def macro(self, depth):
        r = self.r
        if self.macros and r.random() < 0.6:
            name = f"g{r.randrange(self.macros)}"
            arguments = r.choice(["", self.any(1), f"{self.any(1)}, {self.any(1)}", f"b={self.any(1)}", f"{self.any(1)}, a={self.any(1)}", f"*{self.sequence(1)}", f"**{self.mapping(1)}", f"zz={self.any(0)}"])
            return "{{ " + f"{name}({arguments})" + r.choice(["", "|upper", "|length", " ~ 'x'", " is string", ".strip()", "|trim"]) + " }}"
        name = f"g{self.macros}"
        inside, self.in_loop, space, self.space = self.in_loop, 0, self.space, self.space
        body = self.block(depth) + r.choice(["", "{{ a }}{{ b }}", "{{ varargs }}", "{{ kwargs }}", "{{ caller() if caller else '' }}", "{{ a }}"])
        self.in_loop = inside
        self.macros += 1
        parameters = r.choice(["", "a", "a, b", "a, b=1", f"a={self.any(1)}", "a, b=a", "a='x', b=none", "v=v"])
        return self.tag(f"macro {name}({parameters})") + body + self.tag("endmacro")

    def call_block(self, depth):
        name = f"g{self.r.randrange(self.macros)}" if self.macros else "nomacro"
        return self.tag(f"call{self.r.choice(['', '(k)', '(k, j=2)'])} {name}({self.r.choice(['', self.any(1)])})") + self.block(depth) + self.tag("endcall")

    def with_block(self, depth):
        r = self.r
        return self.tag(f"with {r.choice(['v = ' + self.any(2), 'v = 1, y = v', 'a = s, b = a', ''])}") + self.block(depth) + "{{ v }}" + self.tag("endwith")

    def filter_block(self, depth):
        return self.tag("filter " + self.r.choice(['upper', 'trim', 'indent(2)', "replace('a', '-')", 'length', 'title|trim', 'tojson', 'e', 'escape|upper', 'list'])) + self.block(depth) + self.tag("endfilter")

    def program(self):
        r = self.r
        pick = r.random()
        if pick < 0.5:  # expressions alone
            text = self.data().join(self.output(4) for _ in range(r.choice([1, 1, 2])))
        else:
            text = self.data() + "".join(self.statement(r.choice([1, 2, 3])) + self.data() for _ in range(r.choice([1, 2, 3, 4])))
        return text, self.variables()


# ---- conversations ----------------------------------------------------------------------------------------------------------

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


# ---- chat templates ---------------------------------------------------------------------------------------------------------

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
