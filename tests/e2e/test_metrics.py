"""/metrics: the format, the names that dashboards for vLLM use, and numbers that add up."""
import pytest
from harness import MODEL_ID

VLLM_NAMES = """num_requests_waiting num_requests_running kv_cache_usage_perc cache_config_info time_to_first_token_seconds_count
inter_token_latency_seconds_count e2e_request_latency_seconds_count request_queue_time_seconds_count prompt_tokens_total
generation_tokens_total prefix_cache_queries_total prefix_cache_hits_total num_preemptions_total request_success_total""".split()


def total(metrics, name, part=""):
    return sum(v for (n, labels), v in metrics.items() if n == "vllm:" + name and part in labels)


@pytest.mark.share
def test_names_and_format(daemon):
    r = daemon.get("/metrics")
    assert r.headers["content-type"].startswith("text/plain")
    names = {n for n, _ in daemon.metrics()}
    assert {"vllm:" + n for n in VLLM_NAMES} <= names
    assert any(n.startswith("tandem:") for n in names)
    (config,) = [labels for n, labels in daemon.metrics() if n == "vllm:cache_config_info"]
    assert 'block_size="16"' in config and "num_gpu_blocks=" in config


def test_histograms_are_cumulative(daemon):
    daemon.tokens("Hello", max_tokens=5)
    metrics = daemon.metrics()
    for base in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"):
        buckets = [(la, v) for (n, la), v in metrics.items() if n == f"vllm:{base}_bucket"]
        borders = [float(la.split('le="')[1].split('"')[0]) for la, _ in buckets]
        counts = [v for _, v in buckets]
        assert borders == sorted(borders) and borders[-1] == float("inf") and counts == sorted(counts)
        assert counts[-1] == total(metrics, base + "_count") > 0
        assert total(metrics, base + "_sum") >= 0
    (predicted,) = [v for (n, _), v in metrics.items() if n == "tandem:request_queue_time_predicted_seconds_count"]
    assert predicted == total(metrics, "request_queue_time_seconds_count")


def test_counters_count(daemon):
    daemon.until_idle()
    before = daemon.metrics()
    body = {"model": MODEL_ID, "prompt": [700 + i for i in range(50)], "max_tokens": 9, "ignore_eos": True, "temperature": 0}
    for _ in range(3):
        assert daemon.post("/v1/completions", body).status_code == 200
    daemon.until_idle()
    after = daemon.metrics()

    def grew(name, part=""):
        return total(after, name, part) - total(before, name, part)
    assert grew("generation_tokens_total") == 27 and grew("prompt_tokens_total") == 150
    assert grew("request_success_total") == 3 and grew("request_success_total", 'finished_reason="length"') == 3
    assert grew("time_to_first_token_seconds_count") == 3 and grew("e2e_request_latency_seconds_count") == 3
    assert grew("inter_token_latency_seconds_count") == 24
    assert 0 < grew("inter_token_latency_seconds_sum") < grew("e2e_request_latency_seconds_sum")
    assert grew("prefix_cache_queries_total") >= 100 and grew("prefix_cache_hits_total") >= 64


def test_labels_are_of_closed_sets(daemon):
    """Nothing that a client sends becomes a label."""
    daemon.post("/v1/completions", {"model": "evil-model-name", "prompt": "x"})
    daemon.get("/evil-path", headers={"x-request-id": "evil-id"})
    assert "evil" not in daemon.get("/metrics").text
