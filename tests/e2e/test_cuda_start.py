"""backend = cuda on machines that cannot run it: one clear line for each reason, and a separate exit code; auto uses the CPU instead.
A small library of the test takes the place of libcuda.so.1, so a machine with a real driver runs the same tests."""
import json
import os
import shutil
import subprocess

import pytest
from harness import run_daemon

USAGE, NO_DEVICE = 64, 69
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 64,
          "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 64, "rms_norm_eps": 1e-5, "max_position_embeddings": 64}
DRIVER = """
#include <stdlib.h>
#include <string.h>
static int no_device(void) { return 100; }
int cuDriverGetVersion(int *v) { *v = atoi(getenv("FAKE_DRIVER")); return 0; }
int cuInit(unsigned flags) { return 100; }
int cuGetProcAddress_v2(const char *name, void **p, int version, unsigned long long flags, void *status)
{
  *p = strcmp(name, "cuDriverGetVersion") == 0 ? (void *)cuDriverGetVersion : strcmp(name, "cuGetProcAddress") == 0
       ? (void *)cuGetProcAddress_v2 : (void *)no_device;
  return 0;
}
int cuGetProcAddress(const char *n, void **p, int v, unsigned long long f) { return cuGetProcAddress_v2(n, p, v, f, 0); }
int cuGetExportTable(const void **t, const void *id) { return 999; }
"""


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """start(backend, driver): --check with a dummy model; driver is what cuDriverGetVersion returns, None for no libcuda.so.1."""
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "config.json").write_text(json.dumps(CONFIG))

    def run(backend, driver, *options):
        env = {"FAKE_DRIVER": str(driver), "LD_LIBRARY_PATH": str(folder) if driver else str(folder / "none")}
        return run_daemon("--model", folder, "--load-format", "dummy", "--backend", backend, "--check", *options, env=env)

    code, text = run("cuda", None)
    if "built without CUDA" in text:
        assert code == USAGE and "TD_CUDA" in text
        pytest.skip("the daemon was built without CUDA")
    (folder / "driver.c").write_text(DRIVER)
    subprocess.run([shutil.which("cc") or "gcc", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", folder / "driver.c"], check=True)
    return run


def no_driver_here():
    return not any(os.path.exists(os.path.join(d, "libcuda.so.1")) for d in
                   ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64", "/usr/lib/aarch64-linux-gnu"))


CASES = [(12040, ["driver is too old", "CUDA 12.4", "needs 13", "update"]), (99990, ["CUDA 99.9", "sees no GPU"])]
if no_driver_here():
    CASES.append((None, ["no NVIDIA driver is installed"]))


@pytest.mark.parametrize("driver, words", CASES)
def test_no_usable_device(start, driver, words):
    code, text = start("cuda", driver)
    errors = [line for line in text.splitlines() if " error " in line]
    assert code == NO_DEVICE and len(errors) == 1, (code, text)
    for w in words:
        assert w in errors[0], (w, text)
    code, text = start("auto", driver)
    why = [line for line in text.splitlines() if "serving from the CPU" in line]
    assert code == 0 and len(why) == 1 and " info " in why[0], (code, text)
    for w in words:
        assert w in why[0], (w, text)
