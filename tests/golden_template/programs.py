"""Random template programs from a grammar, for comparing with the reference. Deterministic per seed."""
import random
import re

STRINGS = ["''", "'a'", "'Hello World'", "'a,b,,c'", "' pad '", "'<|im_start|>'", "'é日😀'", "'%s-%d'", "'x=%5.2f|%-4s|'",
           "'1'", "'-42'", "'3.7'", "\"it's\"", "'tab\\t\\n'", "'ABC def'", "'{}:{}'", "'a b  c'"]
NAMES = ["s", "t", "n", "f", "l", "d", "m", "b", "z", "u", "messages", "nested", "ns", "x", "y", "e"]
FILTERS = ["upper", "lower", "trim", "length", "list", "first", "last", "string", "tojson", "title", "capitalize",
           "reverse", "reverse|list", "sort", "unique|list", "join", "join('-')", "join(', ')", "default('D')",
           "default('D', true)", "int", "float", "abs", "round", "round(1)", "replace('a', 'bb')", "replace('', '.')",
           "replace('l', 'L', 1)", "items|list", "dictsort", "min", "max", "sum", "safe", "escape", "indent(2)",
           "indent(2, true)", "indent('>>', blank=true)", "tojson(indent=2)", "tojson(indent=0)",
           "tojson(sort_keys=true)", "tojson(ensure_ascii=true)", "tojson(separators=(',', ':'))",
           "map('upper')|list", "map(attribute='role')|list", "map(attribute='k', default=0)|list", "map('string')|join",
           "select|list", "reject|list", "select('string')|list", "reject('equalto', 1)|list", "select('odd')|list",
           "selectattr('role')|list", "selectattr('role', 'equalto', 'user')|list", "rejectattr('x', 'defined')|list",
           "batch(2)|list", "batch(3, 'F')|list", "slice(2)|list", "count", "wordcount", "truncate(6)",
           "truncate(6, true, '~', 0)", "center(9)", "format('q', 3)", "format(1)", "trim('a')", "attr('items')",
           "groupby('role')|list", "sort(reverse=true)", "sort(attribute='role')", "sort(case_sensitive=true)",
           "select('in', [1, 'a'])|list", "d(0)", "map('length')|list", "join(attribute='role')"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "mapping", "sequence", "iterable",
         "true", "false", "boolean", "odd", "even", "divisibleby 3", "divisibleby(2)", "in [1, 'a']", "eq 1", "equalto('a')",
         "upper", "lower", "gt 0", "lt(5)", "ne ''", "callable", "sameas none", "escaped", "ge 1"]
METHODS = ["strip()", "lstrip('a ')", "rstrip()", "split()", "split(',')", "split(' ', 1)", "rsplit(' ', 1)", "upper()",
           "lower()", "title()", "capitalize()", "startswith('H')", "endswith('d')", "endswith(('c', 'd'))",
           "replace('a', 'Z')", "replace('l', '', 1)", "find('o')", "rfind('o')", "count('l')", "index('o')", "join(['x', 'y'])",
           "join(l)", "isdigit()", "isalpha()", "isupper()", "items()", "keys()|list", "values()|list", "get('k')",
           "get('zz', 7)", "get('zz')", "splitlines()", "partition(',')", "zfill(5)", "ljust(7)", "rjust(7, '*')", "append(1)",
           "pop('k')", "update({})", "format(1, 2)", "removeprefix('He')", "swapcase()", "copy()", "isspace()", "center(8)",
           "index(1)", "count(1)", "k", "role", "items", "__class__", "nope", "nope.deeper", "isalnum()", "rpartition('b')"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">", "<=", ">=", "and", "or", "in", "not in", "**"]
LOOP = ["loop.index", "loop.index0", "loop.first", "loop.last", "loop.length", "loop.revindex", "loop.revindex0",
        "loop.previtem", "loop.nextitem", "loop.cycle('o', 'e')", "loop.depth", "loop.changed(x)", "loop.previtem.role"]


class Gen:
    def __init__(self, r):
        self.r = r
        self.macros = []
        self.loops = 0

    def pick(self, *fns):
        return self.r.choice(fns)()

    def atom(self):
        r = self.r
        k = r.randrange(12)
        if k < 4:
            return r.choice(NAMES)
        if k < 6:
            return r.choice(STRINGS)
        if k < 8:
            return r.choice(["0", "1", "2", "3", "-1", "7", "2.5", "0.1", "1e3", "10", "1_000"])
        if k == 8:
            return r.choice(["true", "false", "none", "True", "None"])
        if k == 9 and self.loops:
            return r.choice(LOOP)
        if k == 10 and self.macros:
            return f"{r.choice(self.macros)}({self.atom()}{r.choice(['', ', q=2', ', 3', ', 1, 2, 3'])})"
        return r.choice(["[]", "{}", "[1, 'a', none]", "{'k': 1, 'b': [2]}", "(1, 2)", "()", "range(4)", "range(5, 0, -2)",
                         "[3, 1, 2]", "dict(k=1)", "namespace(v=1).v", "'a' 'b'"])

    def expr(self, depth=0):
        r = self.r
        if depth > 3:
            return self.atom()
        k = r.randrange(16)
        if k < 4:
            return self.atom()
        if k < 7:
            return f"{self.operand(depth)} {r.choice(BINARY)} {self.operand(depth)}"
        if k < 10:
            return f"{self.operand(depth)}|{r.choice(FILTERS)}"
        if k == 10:
            return f"{self.operand(depth)} is {r.choice(['', 'not '])}{r.choice(TESTS)}"
        if k == 11:
            return f"{self.operand(depth)}.{r.choice(METHODS)}"
        if k == 12:
            of, index = self.operand(depth), self.index(depth)
            # not compared: the reference folds slices of constants by other rules (undefined instead of an error)
            literal = not set(re.findall(r'[a-z_]+', re.sub(r"'[^']*'", '', of))) & set(NAMES)
            return f"{of}[{'0' if literal and ':' in index else index}]"
        if k == 13:
            other = r.choice([f" else {self.expr(depth + 1)}", ""])
            return f"({self.expr(depth + 1)} if {self.expr(depth + 1)}{other})"
        if k == 14:
            return r.choice(["not ", "-", "+"]) + self.operand(depth)
        return f"[{self.expr(depth + 1)}, {self.expr(depth + 1)}]"

    def operand(self, depth):
        if self.r.random() < 0.6:
            return self.atom()
        return f"({self.expr(depth + 1)})"

    def index(self, depth):
        r = self.r
        return r.choice(["0", "-1", "1", "'k'", "'role'", "::-1", "1:", ":2", ":-1", "-2:", "::2", "1:3", "9", "n", "4:0:-2",
                         "'x'", "none", "1.0", "n:", "0:n"])

    def ws(self, s):
        r = self.r
        if r.random() < 0.3:
            s = s.replace("{%", "{%-", 1) if r.random() < 0.7 else s.replace("{%", "{%+", 1)
        if r.random() < 0.3:
            s = s[::-1].replace("}%", "}%-", 1)[::-1]
        return s

    def tag(self, inner):
        return self.ws("{% " + inner + " %}")

    def text(self):
        return self.r.choice(["text ", "\n", "  ", "\n  \n", "a\n b", "{# c #}", "{#- c -#}\n", "| ", " \t\n", "<s>", "}}", "x\n\n"])

    def stmt(self, depth):
        r = self.r
        k = r.randrange(20) if depth < 4 else r.randrange(8)
        if k < 3:
            return self.text()
        if k < 8:
            sign = r.choice(["", "", "-"]), r.choice(["", "", "-"])
            return "{{" + sign[0] + " " + self.expr() + " " + sign[1] + "}}"
        if k < 10:
            target = r.choice(["x", "y", "n", "ns.v", "ns.w", "s", "x, y", "z.q"])
            value = f"{self.expr()}, {self.expr()}" if "," in target and r.random() < .8 else self.expr()
            return self.tag(f"set {target} = {value}")
        if k < 13:
            s = self.tag("if " + self.expr()) + self.body(depth)
            for _ in range(r.randrange(2)):
                s += self.tag("elif " + self.expr()) + self.body(depth)
            if r.random() < .5:
                s += self.tag("else") + self.body(depth)
            return s + self.tag("endif")
        if k < 16:
            over = r.choice(["messages", "l", "range(3)", "d.items()", "d|items", "s", "[1, 2, 1]", "nested", self.expr(2), "u", "d"])
            target = r.choice(["x", "e", "k, v"]) if "items" in over else r.choice(["x", "e", "x", "x, y"])
            cond = r.choice(["", "", "", f" if {self.expr(2)}"])
            s = self.tag(f"for {target} in {over}{cond}")
            self.loops += 1
            s += self.body(depth)
            if r.random() < .15:
                s += self.tag(f"if {self.expr(2)}") + self.tag(r.choice(["break", "continue"])) + self.tag("endif") + self.text()
            self.loops -= 1
            if r.random() < .25:
                s += self.tag("else") + self.body(depth)
            return s + self.tag("endfor")
        if k == 16:
            name = f"mac{len(self.macros)}"
            loops, self.loops = self.loops, 0
            params = r.choice(["p", "p, q=1", "p, q=x", "", "p='d', q=p"])
            inner = self.body(depth) + r.choice(["", "{{ caller() }}", "{{ varargs }}", "{{ kwargs }}", "{{ p }}{{ q }}"])
            self.loops = loops
            self.macros.append(name)
            return self.tag(f"macro {name}({params})") + inner + self.tag("endmacro")
        if k == 17:
            return self.tag("set x" + r.choice(["", " | upper", " | trim | length"])) + self.body(depth) + self.tag("endset")
        if k == 18:
            return self.tag("filter " + r.choice(["upper", "trim", "replace('a', 'b') | title", "indent(1)"])) + self.body(depth) + self.tag("endfilter")
        if self.macros and r.random() < .6:
            return self.tag(f"call {r.choice(self.macros)}({self.atom()})") + self.body(depth) + self.tag("endcall")
        return r.choice([
            self.tag("with x = " + self.expr()) + self.body(depth) + self.tag("endwith"),
            self.tag("raw") + "{{ raw }} {% x %}" + self.tag("endraw"),
            self.tag("generation") + self.body(depth) + self.tag("endgeneration"),
        ])

    def body(self, depth):
        return "".join(self.stmt(depth + 1) for _ in range(self.r.randrange(1, 4)))


INPUT = {"s": "Hello World", "t": " a,b\nc ", "n": 3, "f": 2.5, "l": [3, 1, 2], "d": {"k": 1, "items": "I", "b": [1, {"c": None}]},
         "m": {"role": "user", "content": "hi <|im_end|>"}, "b": True, "z": None, "e": "",
         "messages": [{"role": "user", "content": "one", "k": 1}, {"role": "assistant", "content": None},
                      {"role": "user", "content": "é\"'"}],
         "nested": [[1, 2], [3, [4, "x"]]]}


def programs(count, seed):
    r = random.Random(seed)
    for i in range(count):
        g = Gen(r)
        source = ("{% set ns = namespace(v=0, w='') %}" if r.random() < .7 else "") + "".join(
            g.stmt(0 if i % 2 else 3) for _ in range(r.randrange(1, 6 if i % 4 == 0 else 3)))
        yield f"program {seed}/{i}", source, {"trusted": {"bos_token": "<s>"}, "input": INPUT}
