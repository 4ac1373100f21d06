"""The reference for our templates: jinja2 3.1.6 in a sandbox, with the environment of transformers' apply_chat_template (trim_blocks,
lstrip_blocks, loop controls, a `generation` block, json.dumps as tojson, raise_exception, strftime_now, a dict and a namespace that
refuse private names)."""
import datetime
import json

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.utils
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


class TemplateNamespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attrs = dict(*args, **kwargs)
        for name in attrs:
            TemplateNamespace._check(name)
        jinja2.utils.Namespace.__init__(self, attrs)

    def __setitem__(self, name, value):
        TemplateNamespace._check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(
                f"Chat templates cannot store underscore-prefixed attributes on a namespace, but got {name!r}")


class TemplateDict:
    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)


def environment(now):
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: datetime.datetime.fromtimestamp(now).strftime(format)
    env.globals["dict"] = TemplateDict()
    env.globals["namespace"] = TemplateNamespace
    return env


class Reference:
    def __init__(self, now):
        self.env = environment(now)
        self.cache = {}

    def render(self, source, variables):
        """(ok, text or reason, stage)"""
        if source not in self.cache:
            try:
                self.cache = {source: self.env.from_string(source)}
            except Exception as e:  # any failure of the reference is a refusal
                return False, f"{type(e).__name__}: {e}", "compile"
        try:
            return True, self.cache[source].render(**variables), "render"
        except Exception as e:
            return False, f"{type(e).__name__}: {e}", "render"
