"""`python -m mnemoscope` is the command `mnemoscope`."""

import sys

from .cli import main

sys.exit(main())
