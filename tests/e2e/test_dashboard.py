"""packaging/grafana.json and alerts.yml use only metrics and labels that the daemon exports."""
import json
import re

from harness import ROOT, Daemon, parse_metrics

NAME = re.compile(r"\b(?:vllm|tandem):[a-z0-9_]+")


def expressions():
    panels = json.loads((ROOT / "packaging/grafana.json").read_text())["panels"]
    rules = re.findall(r"^ +expr: (.+)$", (ROOT / "packaging/alerts.yml").read_text(), re.M)
    assert len(panels) >= 10 and len(rules) >= 6
    assert len({p["id"] for p in panels}) == len(panels) == len({p["title"] for p in panels})
    return [t["expr"] for p in panels for t in p["targets"]] + rules


def test_every_name_and_label_is_exported(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one\n")
    with Daemon("--api-key-file", keys, api_key="one") as d:
        metrics = parse_metrics(d.get("/metrics", headers={"authorization": "Bearer one"}).text)
    labels = {}
    for name, text in metrics:
        labels.setdefault(name, {"instance", "job"}).update(re.findall(r'([a-z_]+)="', text))
    for expr in expressions():
        assert expr.count("(") == expr.count(")") and expr.count("{") == expr.count("}"), expr
        names = NAME.findall(expr)
        assert names or "up{" in expr, expr
        for name in names:
            assert name in labels, f"{name} of {expr}"
            assert "rate(" + name not in expr or name.endswith(("_total", "_bucket", "_count", "_sum")), f"a rate of a gauge: {expr}"
            for by in re.findall(r"by \(([a-z_, ]+)\)", expr):
                assert set(by.split(", ")) <= labels[name], f"{by} of {expr}"
            for selected in re.findall(re.escape(name) + r"\{([a-z_]+)=\"(\w+)\"", expr):
                assert any(n == name and '{}="{}"'.format(*selected) in text for n, text in metrics), expr
