"""``python -m localscale`` is ``localscale``."""

from localscale.cli import main

if __name__ == "__main__":
    main()
