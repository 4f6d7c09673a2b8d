"""Jinja programs of random statements and expressions, for templates_random.py and templates_own.py."""

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
