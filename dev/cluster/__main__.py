import sys

from dev.cluster.cli import main

sys.exit(main())
