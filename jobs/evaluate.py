"""For `ray job submit --working-dir . -- python jobs/evaluate.py --config conf/loans.yaml ...`"""

import sys

from ray_cfnet.cli import main

main(["evaluate", *sys.argv[1:]])
