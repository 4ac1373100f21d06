"""Programs that measure servers: guidellm, aiperf, lm-evaluation-harness."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

from common import MODEL, TESTS, check

PROMPTS = [f"Count from {i} to ten." for i in range(8)]


def run(folder, program, *args):
    r = subprocess.run([pathlib.Path(sys.executable).parent / program, *map(str, args)], cwd=folder, capture_output=True, text=True, timeout=400,
                       stdin=subprocess.DEVNULL)
    assert r.returncode == 0, (r.stdout + r.stderr)[-3000:]


@check("guidellm", "a run of chats")
def guidellm_chats(d):
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder) / "prompts.jsonl"
        data.write_text("".join(json.dumps({"prompt": p, "output_tokens_count": 8}) + "\n" for p in PROMPTS))
        run(folder, "guidellm", "run", "--backend", f"kind=openai_http,target={d.url},model={MODEL}", "--profile", "kind=concurrent,streams=2",
            "--constraint", "kind=max_requests,count=8", "--data", f"kind=json_file,path={data}", "--output", "kind=json,path=out.json",
            "--disable-console")
        done = json.loads((pathlib.Path(folder) / "out.json").read_text())["benchmarks"][0]["metrics"]["request_totals"]
        assert done["successful"] == 8 and done["errored"] == 0, done


@check("aiperf", "profile of streamed chats")
def aiperf_chats(d):
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder) / "prompts.jsonl"
        data.write_text("".join(json.dumps({"text": p}) + "\n" for p in PROMPTS))
        tokenizer = pathlib.Path(folder) / "tokenizer"  # any tokenizer works, because the daemon counts tokens
        tokenizer.mkdir()
        shutil.copy(TESTS / "golden/tokenizer.json", tokenizer)
        (tokenizer / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        run(folder, "aiperf", "profile", "-m", MODEL, "-u", d.url, "--endpoint-type", "chat", "--streaming", "--tokenizer", tokenizer, "--use-server-token-count",
            "--input-file", data, "--custom-dataset-type", "single_turn", "--request-count", 8, "--concurrency", 2, "--extra-inputs", "max_tokens:8",
            "--output-artifact-dir", "out", "--ui", "none")
        out = json.loads(next((pathlib.Path(folder) / "out").rglob("profile_export_aiperf.json")).read_text())
        assert out["request_count"]["avg"] == 8 and not out.get("error_summary"), out.get("error_summary")


def instances(kind, arguments):
    from lm_eval.api.instance import Instance
    return [Instance(request_type=kind, doc={}, arguments=a, idx=i) for i, a in enumerate(arguments)]


@check("lm_eval", "generate_until by local-completions")
def lm_eval_completions(d):
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    model = LocalCompletionsAPI(base_url=d.url + "/v1/completions", model=MODEL, tokenizer_backend=None, tokenized_requests=False)
    out = model.generate_until(instances("generate_until", [(p, {"until": ["."], "max_gen_toks": 8}) for p in PROMPTS]))
    assert len(out) == 8 and all("." not in t for t in out)


@check("lm_eval", "generate_until by local-chat-completions")
def lm_eval_chats(d):
    from lm_eval.models.openai_completions import LocalChatCompletion
    model = LocalChatCompletion(base_url=d.url + "/v1/chat/completions", model=MODEL)
    chats = [(json.dumps([{"role": "user", "content": p}]), {"until": ["."], "max_gen_toks": 8}) for p in PROMPTS]
    from lm_eval.models.api_models import JsonChatStr
    assert len(model.generate_until(instances("generate_until", [(JsonChatStr(c), k) for c, k in chats]))) == 8


@check("lm_eval", "loglikelihood, the daemon's own tokens")
def lm_eval_loglikelihood(d):
    """scripts/loglikelihood compares its scores with those of the hf backend."""
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    model = LocalCompletionsAPI(base_url=d.url + "/v1/completions", model=MODEL, tokenizer_backend="remote", tokenized_requests=True, max_length=512)
    pairs = [("The capital of France is", " Paris"), ("The capital of France is", " a banana")]
    likely, unlikely = model.loglikelihood(instances("loglikelihood", pairs))
    assert unlikely[0] < likely[0] < 0
