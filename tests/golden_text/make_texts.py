#!/usr/bin/env python3
"""Writes texts.txt: hard texts, one a line, ASCII with \\xHH escapes for every byte outside 20-7E and for the backslash.

The file is committed; run this again only to change it, and then run make_goldens.py.
"""
import itertools
import os

T = []
add = lambda *texts: T.extend(t.encode() if isinstance(t, str) else t for t in texts)

# the plain
add("", "a", " ", "Hello, world!", "Hello world", " Hello world", "Hello  world ", "The quick brown fox jumps over the lazy dog.",
    "It's", "IT'S", "don't DON'T Don'T", "we're WE'RE they've THEY'VE I'll I'LL I'd I'D I'm I'M", "'s't're've'm'll'd",
    "'S'T'RE'VE'M'LL'D", "'rE 'vE 'lL", "x'\u017f y", "'\u017f", "o'clock rock'n'roll 'tis ''quoted''", "'", "''", "'''", "a'b'c'",
    "\u2019s \u2019t it\u2019s", "'\u0441", "'s1", "'s ", "' s", "'se", "'reve", "'llama")
# white space
for n in (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100):
    add(" " * n, " " * n + "x", "x" + " " * n, "\t" * n + "y", "\n" * n)
add("a\nb", "a\r\nb", "a\n\nb", "a\r\n\r\nb", "a \n b", "a\n b", "a\n  b", "a\n\tb", "a \r\n", " \n \n ", "\n ", " \n", "\t\n\t",
    "a\u00a0b", "\u00a0\u00a0x", "a\u3000b", "\u3000\u3000\n", "a\u2028b\u2029c", "\u0085x\u0085", "\u200bx", "\ufeffx", "a\u180eb", "\x0b\x0c\x1c\x1d",
    "x \t y", "x\t y", " \t", "\t ", "a  1", "a  .", "a \n.", "...\n\n...", "!\n", "!\r\n\r\n x", ". \n", "?\n\n\n  x", "x.\n\n\n\ny",
    "\r", "\r\r", "\n\r", "a\rb", "\u2003\u2003a", "\u205f\u202f1", "if x:\n    y\n\n\n    z\n", " \u00a0 \u00a0", "\u00a0\n\u00a0")
# numbers
add("0", "12", "123", "1234", "12345", "123456", "1234567", " 1", "  12", "a1", "1a", "1 2 3", "3.14159", "1,000,000", "1e-10", "0x1F", "$100",
    "100%", "2024-01-31T23:59:59Z", "v1.2.3", "\u0661\u0662\u0663\u0664", "\u0967\u0968\u0969", "\u00bd\u00bc\u00be", "x\u00b2+y\u00b3",
    "\u2167\u2168", "\u2460\u2461\u2462\u2463", "\uff11\uff12\uff13\uff14", "\u4e00\u4e8c\u4e09", "\U0001d7d8\U0001d7d9\U0001d7da\U0001d7db", "1\u00a02", "12\n34",
    "1'000", "1st 2nd 3rd", "\u0e51\u0e52\u0e53\u0e54", "9" * 100)
# scripts
add("Ti\u1ebfng Vi\u1ec7t", "Ti\u1ebfng", " Ti\u1ebfng", "Tie\u0302\u0301ng Vie\u0323\u0302t", "caf\u00e9 cafe\u0301", "na\u00efve nai\u0308ve", "\u00c5ngstr\u00f6m A\u030angstro\u0308m \u212bngstrom",
    "Stra\u00dfe STRASSE", "\u0130stanbul i\u0307", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\u0419\u043e\u0433 \u0418\u0306", "\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac \u0386 \u0391\u0301",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3002", "\u304b\u3099\u304c \u30cf\u309a\u30d1", "\ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8", "\u1112\u1161\u11ab\u1100\u116e\u11a8",
    "\uac00\u11a8 \uac01", "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 \u0e01\u0e33 \u0e19\u0e49\u0e33", "\u0627\u0644\u0644\u063a\u0629 \u0627\u0644\u0639\u0631\u0628\u064a\u0629", "\u0627\u0653 \u0622 \u0645\u064f\u062d\u064e\u0645\u064e\u0651\u062f",
    "\u05e2\u05d1\u05e8\u05d9\u05ea", "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd \ufb2a", "\u0939\u093f\u0928\u094d\u0926\u0940 \u0915\u094d\u0937", "\u0958 \u0915\u093c", "\u09ac\u09be\u0982\u09b2\u09be \u09cb \u09c7\u09be", "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd \u0bca", "\u1019\u103c\u1014\u103a\u1019\u102c",
    "\u10e5\u10d0\u10e0\u10d7\u10e3\u10da\u10d8", "\u0540\u0561\u0575\u0565\u0580\u0565\u0576", "\u12a0\u121b\u122d\u129b", "\u13e3\u13b3\u13a9", "\U00010330\U00010331", "\U0001d400\U0001d401\U0001d402", "\uff21\uff22\uff23 \uff41\uff42\uff43",
    "\ufb01\ufb02 \ufb00", "\u01c4\u01c5\u01c6", "\u02b0\u02b1\u02e0", "\u2126 \u212a \u00c5", "\u2329\u232a", "\uf900\ufa0e\U0002f800", "\u1e9b\u0323", "\U0002ebf0\U0002ebf1", "\u1c89\u1c8a \ua7cb", "\U000105c0\U000105c1", "\U00010d40\U00010d41\U00010d42\U00010d43")
# marks
add("\u0301", "\u0301\u0301\u0301", " \u0301", "a\u0301\u0323", "a\u0323\u0301", "q\u0307\u0323", "q\u0323\u0307", "1\u0301", ".\u0301", "\n\u0301", "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324\u031e\u0349\u035a\u032f\u031e\u0320\u034dA\u036b\u0357\u0334\u0362\u0335\u031c\u0330\u0354L\u0368\u0367\u0369\u0358\u0320G",
    "e" + "\u0301\u0323" * 40, "\u0344\u0344", "\u0f71\u0f72\u0f74", "\u0f73", "\u0340\u0341", "\u20dd\u20de", "a\u20dd", "\u0903\u093e", "x\ufe0f", "\u093ea", "-\u0301a", "a-\u0301", " \u0301a")
# emoji and controls
add("\U0001f600", "\U0001f600\U0001f600\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", "\u2764\ufe0f", "1\ufe0f\u20e3", "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "hi\U0001f44bthere", "\U0001f9d1\u200d\U0001f4bb code", "\u00a9\u00ae\u2122", "\u2192\u21d2\u2248\u2260", "\u20ac\u00a3\u00a5", "\x00", "a\x00b", "\x01\x02\x03\x04\x05\x06\x07\x08", "\x0e\x0f\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b", "\x7f", "\u0080\u009f", "\u00ad",
    "a\x04b", "the\x06n", "\x04\x06\x13\x14\x16\x1d", "hel\x04lo wor\x16ld", "\u202eabc\u202c", "\u200e\u200f\u2066\u2069", "\ue000\uf8ff", "\ufffd", "\uffff\ufffe", "\ud7ff\ue000", "\U0010ffff", "\U000f0000", "\ufdd0")
# code and markup
add("for (int i = 0; i < n; i++) {\n  a[i] += b[i] * c;\n}\n", "def f(x):\n\treturn x ** 2  # square\n", "#include <stdio.h>\r\nint main(void)\r\n{\r\n\treturn 0;\r\n}\r\n", "SELECT * FROM t WHERE a='b''c' AND d<>1;",
    "<html><body class=\"x\">&nbsp;</body></html>", "{\"a\": [1, 2.5, null, true], \"b\": \"\\u00e9\"}", "https://example.org/a/b?c=d&e=f#g", "user@example.org", "C:\\Program Files\\x", "/usr/lib/x86_64-linux-gnu", "a->b::c.d", "x=y==z===w!=v", "/* c */ // d", "\\n\\t\\\\", "%s %d %08.3f", "snake_case camelCase PascalCase SCREAMING_CASE kebab-case",
    "```python\nprint('hi')\n```", "| a | b |\n|---|---|\n| 1 | 2 |", "$$\\int_0^1 x^2 dx$$", "\u2018a\u2019 \u201cb\u201d \u00abc\u00bb \u2014 \u2026", "!@#$%^&*()_+-=[]{}|;':\",./<>?`~", "!!!???...---===___***", "a,b;c:d.e!f?g", "(a)[b]{c}<d>", " (a) [b]", "#hash @at $dollar", " #hash", "@", "ab.cd", ".cd ab", "!a !b", "(\u4f60)", " \u3002", "\u3002\u3002\n")
# long runs
for c, n in (("a", 41), ("a", 300), ("=", 80), ("-", 200), ("ab", 60), ("\u4e00", 50), ("\u0e01", 45), ("\n", 120), (" \n", 60), ("\U0001f600", 30), ("0", 64), ("the ", 40), ("\u00e9", 50), ("e\u0301", 50), ("\u1100\u1161", 20), ("\x04", 50), (".", 128), ("'", 50)):
    add(c * n)
add("pneumonoultramicroscopicsilicovolcanoconiosis", "Donaudampf", " Donaudampf", "pneumonoultramicroscopicsilicovolcanoconiosis" * 3, "Donaudampfschifffahrtselektrizit\u00e4tenhauptbetriebswerkbauunterbeamtengesellschaft", "abcdefghijklmnopqrstuvwxyz" * 4, "aGVsbG8gd29ybGQgdGhpcyBpcyBiYXNlNjQgZW5jb2RlZCB0ZXh0IHRoYXQgZ29lcyBvbg==")
# special tokens, and text that only looks like them
S = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<repo_name>", "<file_sep>", "<jupyter_start>", "<tool_call>", "</tool_call>", "<think>", "</think>", "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cUser\uff5c>",
     "<s>", "</s>", "[INST]", "<unk>"]
add(*S)
for s in S[:6]:
    add("a" + s + "b", " " + s + " ", s + s, s[:-1], s[1:], "\n" + s + "\n", s + "\u0301", s.upper(), s[:4] + " " + s[4:], "<" + s + ">")
add("<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n", "<|", "<||>", "<|im_start", "|im_end|>", "<|im_<|im_end|>", "<|endoftext|", "<|reserved_special_token_1|><|reserved_special_token_10|>",
    # the small tokenizer's
    "[L]", "a  [L]  b", "a [R]  \n b", "[L][R] [L]", "[W]", "a[W]", "[W]b", " [W] ", "a [W]. [W]", "\u00e9[W]", "[N\u00e9]", "[Ne\u0301]", "x[Ne\u0301]y", "[S]", "a[S]b", "[SS]", "[S[S]]", "[S][SS][SSS]", "[W]\u0301", "[W]_[W]", "[R]\u00a0\u3000x", "\u3000[L]", "[R] [L]")
# bytes that are not UTF-8
add(*(bytes([b]) for b in range(0x80, 0x100, 5)))
add(bytes(range(256)), b"\xff\xfe", b"a\xffb", b"\xc3", b"\xc3\x28", b"\xe2\x82", b"\xe2\x82\xac\xe2\x82", b"\xf0\x9f\x98", b"\xf0\x9f\x98\x80\xf0\x9f", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xc0\x80", b"\xe0\x80\x80", b"\xf5\x80\x80\x80", b"\xf4\x90\x80\x80", b"\x80 \x80",
    b"  \xff  ", b"it'\xffs", b"12\xff34", b"<|im_\xffend|>", b"<|im_end|>\xff<|im_end|>", b"e\xcc\x81\xcc", b"\xcc\x81\xff\xcc\x81", b"\xf8\x88\x80\x80\x80", b"\xed\x9f\xbf\xee\x80\x80")
# neighbours: each pair of kinds of characters, for the boundaries of parts
kinds = ["a", "1", " ", "\n", ".", "\u0301", "\u4e00", "'", "\u00a0", "$"]
for x, y in itertools.product(kinds, kinds):
    if x != y:
        add(x + y + x + x + y + y)

def escape(b):
    return "".join(chr(c) if 0x20 <= c < 0x7F and c != 0x5C else "\\x%02X" % c for c in b)

seen, out = set(), []
for t in T:
    if t not in seen:
        seen.add(t)
        out.append(escape(t))
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "texts.txt"), "w") as f:
    f.write("\n".join(out) + "\n")
print(len(out), "texts")
