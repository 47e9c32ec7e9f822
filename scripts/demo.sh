#!/bin/sh
# What `make run` does: cook the packaged photograph, train, leave the picture in res/out.png.
# Arguments go to `convtrain run`: --fresh starts again, --device picks a GPU.
set -eu
cd "$(dirname "$0")/.."
convtrain=.venv/bin/convtrain

$convtrain cook
preset=$($convtrain info res_train/train.res --json | .venv/bin/python -c 'import json, sys; print(json.load(sys.stdin)["config"]["preset"])')
case $preset in
    cpu) epochs=200 ;;
    *) epochs=600 ;;
esac
$convtrain run --until "$epochs" "$@"
echo "The picture is res/out.png, the model res/model.res. Draw it larger: .venv/bin/convtrain render res/model.res --scale 4 -o large.png"
