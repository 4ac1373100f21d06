#!/usr/bin/env python3
"""Writes common_json.txt: JSON texts with Python's verdict on them, for tests/unit/test_common_json.c.

Python's json module says what is JSON and what it means; the rules that we add on top (no NUL, no lone surrogates,
no repeated keys, numbers of 63 characters, 64 levels) are applied here to what Python read, not to the text.
A line: name, "ok" or the reason for refusal, the text in hex, and for "ok" the value in a canonical form.
"""
import json
import random
import sys

MAX_DEPTH = 64
EXACT = 2**53 - 1


class Refused(Exception):
    pass


class Number:
    def __init__(self, text, integer):
        if len(text) > 63:
            raise Refused("number-length")
        self.text, self.integer = text, integer


class Pairs:
    def __init__(self, items):
        keys = [k for k, _ in items]
        if len(set(keys)) != len(keys):
            raise Refused("duplicate-key")
        self.items = items


def string(s):
    if "\0" in s:
        raise Refused("nul")
    if any(0xD800 <= ord(c) <= 0xDFFF for c in s):
        raise Refused("surrogate")
    return "s" + s.encode().hex()


def canonical(v, depth=0):
    if isinstance(v, (list, Pairs)) and depth == MAX_DEPTH:
        raise Refused("depth")
    if v is None or v is True or v is False:
        return {None: "z", True: "t", False: "f"}[v]
    if isinstance(v, str):
        return string(v)
    if isinstance(v, Number):
        big = v.integer and abs(int(v.text)) > EXACT
        return "i" + v.text if big else "n%.17g" % float(v.text)
    if isinstance(v, Pairs):
        return "{" + "".join(string(k) + ":" + canonical(x, depth + 1) + "," for k, x in v.items) + "}"
    return "[" + "".join(canonical(x, depth + 1) + "," for x in v) + "]"


def no_constant(s):
    raise ValueError("constant " + s)


def verdict(data):
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=Pairs, parse_constant=no_constant,
                           parse_int=lambda s: Number(s, True), parse_float=lambda s: Number(s, False))
        return "ok", canonical(value)
    except Refused as e:
        return str(e), ""
    except ValueError:
        return "not-json", ""


def hand_made():
    # literals and structure
    for t in ["null", "true", "false", "[]", "{}", "[[]]", "[{}]", '{"a":[]}', '{"a":{"b":{"c":null}}}', " [1] ", "[1\n]",
              "\t\r\n {} \n", '{ "a" : 1 , "b" : [ 2 , 3 ] }', "[null,1,\"1\",{}]", '{"":0}', '""', "0", "-1", '"x"',
              "[1,null,null,2]", '{"a":1,"A":2}', '[[[[[[1]]]]]]', '{"a":"b","c":{"d":"e"}}']:
        yield "y_structure", t
    for t in ["", " ", "\n", "nul", "nulll", "True", "TRUE", "None", "tru", "truefalse", "true false", "[", "]", "{", "}", "[}",
              "{]", "[1", "[1,", "[,1]", "[1,,2]", "[1,]", "[,]", "[1 2]", "[1}", '{"a"}', '{"a":}', '{"a":1,}', '{,}', "{1:1}",
              "{a:1}", "{'a':1}", '{"a" 1}', '{"a"::1}', '{"a":1 "b":2}', '{"a":1,,"b":2}', '{"a":1}}', '{"a":1}x', "[1]]",
              "[1] 2", "[] []", "1 2", ",", ":", "[1:2]", '{"a",1}', "{null:1}", '{"a":b}', "[a]", "[\"a\"", '["a",', "{[1]:1}",
              "//c\n1", "/* c */1", "[1]//", "[1]#", "[1];", "undefined", "[undefined]", "(1)", "<x>", "[*]", "\\", "[\\]",
              "\ufeff[]", "[]\ufeff", "\u00a0[]", "[\u2028]", "[\u3000]", "[\x0b1]", "[\x0c1]", "[\x001]", "[1\x00]", "[]\x00",
              "\x00", "n", "[n]", "[-]", "[t]", "[f,]", '{"a":tru}', '{"a":1', '{"a"', '{"', "{\"a\":1,\"b\"", "[[1],", "\x7f"]:
        yield "n_structure", t
    # numbers
    for t in ["0", "-0", "1", "-1", "10", "123456789", "0.5", "-0.5", "0e0", "0E+0", "-0e-1", "1e1", "1E1", "1e+1", "1e-1", "1.5e3",
              "123.456e-7", "0.0", "-0.0", "1e308", "1e309", "-1e400", "1e999", "1e-400", "4.9e-324", "2.2250738585072014e-308",
              "1.7976931348623157e308", "9007199254740991", "9007199254740992", "9007199254740993", "-9007199254740991",
              "-9007199254740993", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
              "18446744073709551615", "18446744073709551616", "999999999999999", "1000000000000000", "1234567890123456",
              "12345678901234567890123456789012345678901234567890", "9007199254740993.0", "1e15", "1e16", "10e15", "123456789012345678e0",
              "0.1", "0.30000000000000004", "3.141592653589793238462643383279", "100000000000000000000e-20", "0." + "0" * 60 + "1",
              "1" * 63, "1" * 64, "-" + "1" * 62, "-" + "1" * 63, "0." + "1" * 61, "0." + "1" * 62, "1e" + "0" * 61, "1e" + "0" * 62,
              "-0.000000000000000000000000000000000000000000000000000000000000000000000000000001"]:
        yield "number", t
        yield "number_in_array", "[%s,%s]" % (t, t)
    for t in ["01", "-01", "00", "-00", "+1", "--1", "-", "- 1", ".5", "-.5", "1.", "1.e1", "1.5.5", "1e", "1e+", "1e-", "1E", "1ee1", "1e1e1",
              "1e1.5", "e1", "0x10", "0b1", "0o7", "1_000", "1,000", "1a", "1f", "1.0f", "1L", "NaN", "nan", "-NaN", "Infinity",
              "-Infinity", "inf", "INF", "1/2", "1+1", "1-1", "0e", "0.e1", "1..2", "\uff11", "\u0661", "1 .5", "1. 5", "1 e1", "-a",
              "0-1", "0+1", "00.1", "-0x1", "2.e3", "2.e+3", "1\x00", "\u22121"]:
        yield "n_number", t
        yield "n_number_in_array", "[%s]" % t
        yield "n_number_in_object", '{"a":%s}' % t
    # strings
    for t in ["a", "", " ", "\\\"", "\\\\", "\\/", "/", "\\b", "\\f", "\\n", "\\r", "\\t", "\\u0061", "\\u00e9", "\\u20AC", "\\ud83d\\ude00",
              "\\uD834\\uDd1e", "\u00e9", "\u20ac", "\U0001f600", "\U0010ffff", "\ufeff", "\uffff", "\ufffe", "\u2028", "\u2029", "\x7f",
              "\u0080", "\\u0001", "\\u001f", "\\u007f", "\\uffff", "\\\\u0000", "\\\\\\\\", "\\\\\\\"", "[]{},:", "'", "a\\u0062c\\n",
              "\\udbff\\udfff", "\\ud800\\udc00", "\u1234\U00012345x", "\\u000A", "\\u005C", "\\u0022", "null", "\ud7ff\ue000"]:
        yield "y_string", '"%s"' % t
        yield "y_key", '{"%s":"%s"}' % (t, t)
    for t in ["\\", "\\x", "\\a", "\\v", "\\0", "\\'", "\\u", "\\u1", "\\u12", "\\u123", "\\u123g", "\\uG000", "\\U0061", "\\u 061", "\\u-061",
              "\\u+061", "\\u00", "\\u{61}", "\\\u00e9", "\\\n", "\\ ", "\\N", "\n", "\t", "\r", "\x01", "\x1f", "\x00", "a\x00b", "\\\x00",
              "\\u0x61", "\\u006", "\\u00zz"]:
        yield "n_string", '"%s"' % t
        yield "n_key", '{"%s":1}' % t
    for t in ["\\u0000", "a\\u0000b", "\\ud800", "\\udc00", "\\ud800x", "\\ud800\\n", "\\ud800\\u0061", "\\udc00\\ud800", "\\ud800\\ud800",
              "\\ud800\\ud800\\udc00", "\\udfff", "\\uDbFf", "x\\udbff", "\\ud83d\\\\ude00", "\\ud83d\\u", "\\ud83d\\ude0", "\\ud83d\\"]:
        yield "string_refused", '"%s"' % t
        yield "key_refused", '{"%s":1}' % t
    for t in ['"', '"a', '"a\\"', "a\"", "'a'", '"a"b', '"a""b"', '["a"x]', "\"\\\"", "`a`", '\u201ca\u201d']:
        yield "n_quotes", t
    # repeated keys
    for t in ['{"a":1,"a":2}', '{"a":1,"a":1}', '{"a":1,"\\u0061":2}', '{"":1,"":2}', '{"a":1,"b":2,"a":3}', '[{"a":{"x":1,"x":1}}]',
              '{"a":1,"a\\/":2,"a/":3}', '{"\\n":1,"\\u000a":2}', '{"\u00e9":1,"e\u0301":2}', '{"a":{"a":{"a":1}}}', '{"\U0001f600":1,"\\ud83d\\ude00":2}']:
        yield "keys", t
    # depth
    for d in (1, 2, 63, 64, 65, 100, 300):
        yield "depth", "[" * d + "]" * d
        yield "depth_object", '{"a":' * d + "1" + "}" * d
        yield "depth_mixed", '[{"a":' * (d // 2) + "[]" + "}]" * (d // 2)
    yield "n_open", "[" * 1000


def bytes_cases():
    bad = ["80", "bf", "c0af", "c080", "c1bf", "c2", "c3", "c328", "e0809f", "e08080", "e09fbf", "e282", "e28228", "eda080", "edbfbf", "edafbfedbfbf",
           "f0808080", "f08fbfbf", "f09f98", "f09f9828", "f0288cbc", "f4908080", "f5808080", "f888808080", "fc8480808080", "fe", "ff", "e9", "81"]
    good = ["c280", "dfbf", "e0a080", "ed9fbf", "ee8080", "efbfbf", "f0908080", "f48fbfbf"]
    for h in bad + good:
        b = bytes.fromhex(h)
        yield "utf8_" + h, b'"' + b + b'"'
        yield "utf8_key_" + h, b'{"' + b + b'":1}'
        yield "utf8_tail_" + h, b'["a' + b
        yield "utf8_outside_" + h, b"[" + b + b"]"
    for enc in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        yield "encoding_" + enc, '["a"]'.encode(enc)


DOC = '{"model":"m","prompt":[1,-2.5e3,12345678901234567890],"s":"a\\n\\u00e9\u20ac","t":true,"f":false,"n":null,"o":{"k":[{}]}}'.encode()


def prefixes():
    for i in range(len(DOC)):
        yield "prefix_%d" % i, DOC[:i]


def mutations():
    rng = random.Random(8259)
    alphabet = b'{}[]",:\\/0123456789eE+-.truefalsn u\n\x00\x1f\x80\xff'
    for i in range(300):
        d = bytearray(DOC)
        for _ in range(rng.choice((1, 1, 1, 2))):
            at, how = rng.randrange(len(d)), rng.randrange(4)
            if how == 0:
                d[at] = rng.choice(alphabet)
            elif how == 1:
                del d[at]
            elif how == 2:
                d.insert(at, rng.choice(alphabet))
            else:
                other = rng.randrange(len(d))
                d[at], d[other] = d[other], d[at]
        yield "mutation_%d" % i, bytes(d)


sys.setrecursionlimit(10000)


def main():
    counts = {}
    with open(__file__.replace(".py", ".txt"), "w", encoding="ascii") as out:
        out.write("# made by common_json.py with Python's json module; do not edit\n")
        number = {}
        for make in (hand_made, bytes_cases, prefixes, mutations):
            for name, text in make():
                data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
                if make is hand_made:
                    number[name] = number.get(name, 0) + 1
                    name = "%s_%d" % (name, number[name])
                v, canon = verdict(data)
                counts[v] = counts.get(v, 0) + 1
                out.write("%s %s %s %s\n" % (name, v, data.hex() or "-", canon))
    print(counts, file=sys.stderr)


main()
