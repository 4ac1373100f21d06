"""Makes random JSON schemas for bench-grammar: small, with keywords that interact, and mostly satisfiable."""
import random

NAMES = ["a", "b", "c", "ab"]
WORDS = ("type type enum const required properties properties additionalProperties minLength maxLength pattern minimum maximum "
         "exclusiveMinimum exclusiveMaximum multipleOf items prefixItems minItems maxItems contains contains allOf anyOf oneOf oneOf "
         "not not if if dependentRequired dependentSchemas patternProperties propertyNames minProperties maxProperties "
         "unevaluatedProperties unevaluatedItems $ref").split()
VALUES = [0, 1, 2, -1, 1.5, "a", "ab", "", True, False, None, "b1", [], [1], ["a", None], {}, {"a": 1}, {"a": [1], "b": "a"}]
SIMPLE = ["string", "integer", "number", "null", "boolean"]
CHOICES = {"type": ["object", "array", "string", "integer", "number", ["string", "number"], ["object", "null"], ["integer", "array"], "boolean"],
           "pattern": ["^a", "b$", "^[a-c]+$", "a|^b", "^.$", "[0-9]", "^(ab)*$", "x?"],
           "multipleOf": [1, 2, 3, 4, 0.5, 0.25],
           "propertyNames": [{"pattern": "^a"}, {"enum": ["a", "b"]}, {"maxLength": 1}, {"not": {"const": "a"}}, {"minLength": 2}]}
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def some(self, values, most):
        return self.r.sample(values, self.r.randint(1, most))

    def word(self, k, depth):
        r = self.r
        if k in CHOICES:
            return r.choice(CHOICES[k])
        if k in BOUNDS:
            return r.choice([0, 1, -1, 2, 1.5, -0.5, 10])
        if k in COUNTS:
            return r.randint(0, 3)
        if k == "enum":
            return [r.choice(VALUES) for _ in range(r.randint(1, 4))]
        if k == "const":
            return r.choice(VALUES)
        if k == "required":
            return self.some(NAMES, 2)
        if k == "properties":
            return {n: self.schema(depth) for n in self.some(NAMES, 3)}
        if k == "patternProperties":
            return {r.choice(["^a", "b$", "c"]): self.schema(depth)}
        if k == "dependentRequired":
            return {r.choice(NAMES): self.some(NAMES, 2)}
        if k == "dependentSchemas":
            return {r.choice(NAMES): self.schema(depth)}
        if k in ("prefixItems", "allOf", "anyOf", "oneOf"):
            return [self.schema(depth) for _ in range(r.randint(1, 3))]
        return self.schema(depth) if r.random() < 0.7 else r.choice([True, False])

    def schema(self, depth):
        r, s = self.r, {}
        if depth <= 0 or r.random() < 0.08:
            return r.choice([True, {}, {"type": r.choice(SIMPLE)}, {"const": r.choice(VALUES)}, r.random() < 0.7])
        for k in (r.choice(WORDS) for _ in range(r.choice([1, 1, 2, 2, 3, 4]))):
            if k == "$ref" and depth < 3:
                s[k] = "#/$defs/" + r.choice("xy")
            elif k != "$ref":
                s[k] = self.word(k, depth - 1)
            also = {"contains": ("minContains", "maxContains"), "if": ("then", "else")}.get(k, ())
            for other in also:
                if r.random() < 0.5:
                    s[other] = r.randint(0, 2) if k == "contains" else self.schema(depth - 1)
        return s

    def root(self):
        s = self.schema(3)
        if isinstance(s, dict):
            s["$defs"] = {"x": self.schema(1), "y": self.schema(1)}
        return s
