#!/bin/bash
# Makes tiny-k2 and tiny-k2-dflash from nothing but Debian packages; README.md says what each step needs and writes.
set -euo pipefail
cd "$(dirname "$0")"

make_data() {
  mkdir -p debs x work/tok work/enc
  (cd debs && apt-get download $(cat ../packages.txt ../packages_prose.txt))
  for deb in debs/*.deb; do
    package=$(basename "$deb" | cut -d_ -f1)
    mkdir -p "x/$package"
    dpkg -x "$deb" "x/$package"
    dpkg-deb -f "$deb" Version > "x/$package/.version"
  done
  python3 build_corpus.py x work packages_prose.txt
  for seed in 1 2; do python3 gen_chat.py "work/chat$seed.jsonl" 100000 "$seed"; done
  cat work/chat1.jsonl work/chat2.jsonl > work/chat.jsonl
  g++ -O2 -o bpe bpe.cpp
  # The shipped vocabulary came from an earlier, smaller cut: to repeat the model, keep its tiktoken.model.
  [ -e work/tok/tiktoken.model ] || cp ../tiny-k2/tiktoken.model work/tok/
  for kind in code prose chat; do python3 encode_all.py work work/tok "$kind" work/enc; done
  # The shipped model saw the first 83,000,000 code tokens of two bytes each.
  truncate -s 166000000 work/enc/code.train.u16
  python3 make_prompts.py work/tok work/enc .
}

train() {
  python3 train_target.py work/enc tiny-k2 500
  python3 train_draft.py work/enc tiny-k2 tiny-k2-dflash 430
}

check() {
  python3 verify_hf.py tiny-k2 tiny-k2-dflash prompts.json verify.json
  python3 tok_golden.py work/tok tok_cases.json tokenizer.json
  python3 eval_spec.py tiny-k2 tiny-k2-dflash prompts.json acceptance.json
  python3 extras.py tiny-k2 tiny-k2-dflash prompts.json work/enc extras.json
  python3 goldens.py tiny-k2 tiny-k2-dflash prompts.json golden
}

case "${1:-}" in
  data) make_data ;;
  train) train ;;
  check) check ;;
  *) echo "usage: run.sh data|train|check" >&2; exit 2 ;;
esac
