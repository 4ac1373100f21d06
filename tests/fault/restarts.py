#!/usr/bin/env python3
"""Row 14: a drain and a restart under load, while the socket is held as systemd holds it. Streams and whole answers arrive without a pause, each
on its own connection; none is refused, and none is cut off during the grace period."""
import signal
import threading
import time



from lib import SLOWNESS, Row, ask, parse_answer, post, tiny_model

import test_restart  # after lib, which sets the path

WHOLE = post("/v1/completions", {"prompt": [5, 6, 7], "temperature": 0, "max_tokens": 20, "ignore_eos": True}, "Connection: close\r\n")
STREAM = post("/v1/completions", {"prompt": [5, 6, 8], "temperature": 0, "max_tokens": 60, "ignore_eos": True, "stream": True},
              "Connection: close\r\n")


def main():
    row = Row(__doc__, 500)
    test_restart.MODEL = str(tiny_model())
    wrong, n_asked, stop = [], [0], threading.Event()
    options = ("--load-format", "dummy", "--log-level", "warn", "--allowed-hosts", "t")

    def load(port, raw):
        while not stop.is_set():
            try:
                status, body = parse_answer(ask(port, raw, 60))
                good = status == 200 and body and (raw is WHOLE or body.endswith(b"data: [DONE]\n\n")) and b'"error"' not in body
            except OSError as e:
                good, status, body = False, repr(e), b""
            n_asked[0] += 1
            if not good:
                wrong.append(f"{status} {(body or b'')[-200:]!r}")

    with test_restart.Holder() as h:
        old = h.start(*options)
        threads = [threading.Thread(target=load, args=(h.port, raw)) for raw in (WHOLE, WHOLE, STREAM, STREAM)]
        for t in threads:
            t.start()
        for _ in range(row.amount):
            n, end = n_asked[0], time.monotonic() + 30 * SLOWNESS
            while n_asked[0] < n + 6 and time.monotonic() < end:
                time.sleep(0.002)
            old.send_signal(signal.SIGTERM)
            code = old.wait(40 * SLOWNESS)
            h.daemons.remove(old)
            old = h.start(*options)
            if not row.expect(code == 0 and n_asked[0] > n, f"exit code {code}, {n_asked[0] - n} answers before"):
                break
            row.done()
        stop.set()
        for t in threads:
            t.join()
    for text in wrong:
        row.fail(text)
    row.note(f"{n_asked[0]} requests, {len(wrong)} refused or truncated")
    row.end()


if __name__ == "__main__":
    main()
