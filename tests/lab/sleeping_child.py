"""A module for a child process: it starts a process of its own, prints both numbers and sleeps."""

import os
import subprocess
import sys
import time

if __name__ == "__main__":
    below = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(os.getpid(), below.pid, flush=True)
    time.sleep(600)
