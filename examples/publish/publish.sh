#!/bin/sh
# From an empty folder to a published index: three transformers models, each for two targets.
#
#     sh publish.sh FOLDER [MODEL ...]
#
# FOLDER must not exist yet. MODEL is text, vision or speech; by default, the script builds all
# three. It publishes the packages to $PUBLISH_TO (FOLDER/published by default), which can be any
# address that `pte publish` accepts. First run pip install 'pte-pipeline[http]' 'transformers>=5.24,<6'.
# The script downloads nothing, since the models are tiny and have random weights. For an explanation,
# see docs/guides/from-transformers-to-an-index.md.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir "$1" && cd "$1" && shift
[ $# -gt 0 ] || set -- text vision speech
address=${PUBLISH_TO:-file://$PWD/published}

# Write the checkpoints, instead of running `hf download ORG/MODEL --local-dir checkpoints/MODEL`.
python "$here/checkpoints.py" checkpoints "$@"

# Write a source for each model.
mkdir models partition_configs
cat > models/text.yaml <<'END'
transformers: checkpoints/text
task: text-generation
max_cache_len: 32
END
cat > models/vision.yaml <<'END'
transformers: checkpoints/vision
task: image-classification
END
cat > models/speech.yaml <<'END'
transformers: checkpoints/speech
task: automatic-speech-recognition
END

# Write the settings that all packages share, and a config for each model.
cat > partition_configs/_targets.yaml <<'END'
target: ${matrix.target}
matrix:
  target:
    android-arm64: {defaults: {partitioners: [xnnpack]}}
    any: {defaults: {partitioners: []}}   # portable kernels: a fallback for all other devices
publish: {licence: apache-2.0}
END
cat > partition_configs/text.yaml <<'END'
extends: _targets
model: text
methods: {prefill: {}, decode: {}}
validate: {allow: [not-judged]}   # prefill has a fixed length, so its position count never changes
END
cat > partition_configs/vision.yaml <<'END'
extends: _targets
model: vision
methods: {forward: {}}
END
cat > partition_configs/speech.yaml <<'END'
extends: _targets
model: speech
methods: {forward: {}}
END
for model in text vision speech; do
    case " $* " in *" $model "*) ;; *) rm "models/$model.yaml" "partition_configs/$model.yaml" ;; esac
done

pte init                      # writes dodo.py and .gitignore; existing configs stay
pte                           # exports, lowers and validates all packages
pte publish --to "$address"   # rejects packages that are stale or failed
pte publish --to "$address"   # uploads nothing, since everything is already there

# Fetch as a client would, without a workspace. Any web server can serve the folder.
case $address in
    file://*)
        python -u -m http.server --bind 127.0.0.1 --directory "${address#file://}" 0 > server.log 2>&1 &
        server=$!
        trap 'kill $server' EXIT
        until port=$(sed -n 's/.* port \([0-9]*\).*/\1/p' server.log) && [ -n "$port" ]; do
            kill -0 $server && sleep 0.1
        done
        address=http://127.0.0.1:$port
        ;;
esac
mkdir client && cd client
paths=$(for model in "$@"; do
    for target in android-arm64 any; do
        pte fetch "$address" "$target" "$model"
    done
done)
python "$here/client.py" $paths
