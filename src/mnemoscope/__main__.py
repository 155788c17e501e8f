"""`python -m mnemoscope` is the command `mnemoscope`."""

import sys

from mnemoscope.cli import main

sys.exit(main())
