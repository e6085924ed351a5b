"""For `ray job submit --working-dir . -- python jobs/explain.py --config conf/loans.yaml ...`"""

import sys

from ray_cfnet.cli import main

main(["explain", *sys.argv[1:]])
