"""W2: what LocalBackend costs a rollout of 200 messages of 2 KB."""

from __future__ import annotations

import overhead

if __name__ == "__main__":
    overhead.main("w2", "4,64", goal=0.30)
