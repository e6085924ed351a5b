"""For `ray job submit --working-dir . -- python jobs/train.py --config conf/loans.yaml ...`"""

import sys

from ray_cfnet.cli import main

main(["train", *sys.argv[1:]])
