"""``python -m convtrain`` is the command ``convtrain``."""

import sys

from convtrain.cli.app import main

sys.exit(main())
