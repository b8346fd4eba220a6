#!/usr/bin/env python3
"""Reference token ids for random texts, for tests/text/tokenizer_oracle_test.cpp.

usage: oracle_tokenizer.py tiktoken FOLDER COUNT SEED OUT      a Kimi-style folder (tiktoken.model, tokenizer_config.json)
       oracle_tokenizer.py KIND FOLDER COUNT SEED OUT          KIND qwen3 | llama3 | smollm2 | gpt2: trains a small
                                                               tokenizer of that shape into FOLDER/tokenizer.json
       oracle_tokenizer.py smollm2-vocabulary FOLDER COUNT SEED OUT   the vocabulary in FOLDER/vocabulary.json ({tokens, types, merges}
                                                               as a GGUF file lists them) in SmolLM2's shape
       oracle_tokenizer.py pieces - COUNT SEED OUT             what the pre-tokenisation patterns cut (Oniguruma)

OUT gets two lines a case: the text as hex (prefixed `s` where special tokens are allowed), and the ids.
For `pieces` it is the text as hex and one line a pattern (kimi, llama3, qwen3, gpt2, smollm2) with the byte length of each piece.
"""
import glob
import json
import os
import random
import sys
import sysconfig

KIMI_PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_end|>x", "<think>", "</think>", "<tool_call>"]

POOLS = [
    "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789", "     ", "\n\r\t \u00a0\u3000\u2028\x0b\x0c\x85\x1c\x1f",
    "'sStTrReEvVmMlLdD\u017f\u212a'", ".,;:!?()[]{}<>|/\\@#$%^&*-_=+~`\"", "\u4e00\u4eca\u5929\u662f\u4e16\u754c\u5e74\u3007\u3021\u2e80\u3005\u3400\U00020000",
    "\u3042\u30a2\u30fc\u30c6\uac00\ud55c\uae00\u1100\u1161\u11a8", "\u0300\u0301\u0316\u0327\u0345\u0483\u093c\u094d\u0e38\u0e49\u302e\u3099\u1d16d".replace("\u1d16d", "\U0001d16d"),
    "\u0645\u0631\u062d\u05d0\u05b8\u0e01\u0e33\u0915\u093e", "\u01c5\u01c8\u02b0\u02bc\u1d2c\u2c7c\u00e9\u00c5\u212b\u1e9b\u0344\u0958",
    "\u00bd\u2160\u2460\u0661\u0967\U0001d7ce", "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f1e9\U0001f1ea\ufe0f\u20e3", "\x00\x01\x7f\ufeff\ufffd\ufffe\U000e0001\U0010ffff",
]
WORDS = ["don't", "we'LL", "I'M", "it'\u017f", "HTTPServer", "x2y", "  \n", " \r\n\n ", "\n  x", "   foo", "def f(x):\n    return x\n", "202", "4567",
         "\u4eca\u5929\u662f2024\u5e74", "na\u00efve", "e\u0301", " 'tis", "''s", "<|im_end|>", "<think>", "</think>", "<|im_user|>", "[EOS]", "<|endoftext|>",
         "<tool_call>", "<|reserved_token_5150|>", "http://a.b/c?d=e", "a  b\n\n c"]


def random_text(rng):
    style, length, parts = rng.random(), rng.choice([1, 2, 3, 5, 8, 13, 30, 80]), []
    for _ in range(length):
        r = rng.random()
        if style < 0.25 or r < 0.05:  # any code point, assigned or not
            code = rng.randrange(0x110000 - 0x800)
            parts.append(chr(code if code < 0xD800 else code + 0x800))
        elif style < 0.4:
            parts.append(chr(rng.choice([rng.randrange(0x3000), rng.randrange(0x3000, 0xD800), rng.randrange(0x10000, 0x20000)])))
        elif r < 0.15:
            parts.append(rng.choice(WORDS))
        else:
            parts.append("".join(rng.choice(rng.choice(POOLS)) for _ in range(rng.choice([1, 1, 2, 4]))))
    return "".join(parts)


def load_tiktoken(folder):
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe
    ranks = load_tiktoken_bpe(os.path.join(folder, "tiktoken.model"))
    named = json.load(open(os.path.join(folder, "tokenizer_config.json")))["added_tokens_decoder"]
    specials = {named.get(str(i), {}).get("content", f"<|reserved_token_{i}|>"): i for i in range(len(ranks), len(ranks) + 256)}
    encoding = tiktoken.Encoding("kimi", pat_str=KIMI_PATTERN, mergeable_ranks=ranks, special_tokens=specials)
    return lambda text, special: encoding.encode(text, allowed_special="all" if special else set(), disallowed_special=())


def train(kind, folder):
    """Trains a byte-level BPE of the published shape, saves it and returns its encoder."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    split = lambda pattern: pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind in ("smollm2", "gpt2"))
    if kind == "qwen3":
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split(CL100K % ""), byte_level])
    elif kind == "llama3":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split(CL100K % "{1,3}"), byte_level])
    elif kind == "smollm2":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    else:
        tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    files = sorted(glob.glob(os.path.join(sysconfig.get_paths()["stdlib"], "[a-m]*.py")))[:60]
    rng = random.Random(7)
    corpus = [open(f, encoding="utf-8", errors="replace").read() for f in files] + [random_text(rng) for _ in range(20000)]
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=6000, show_progress=False, special_tokens=[],
                                                             initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    data = json.loads(tokenizer.to_str())
    if kind == "llama3":
        # The merges cannot make this token: only taking the whole piece first finds it.
        data["model"]["vocab"]["unreachable"] = len(data["model"]["vocab"])
        data["model"]["ignore_merges"] = True
    if kind == "smollm2":  # the older way to write merges
        data["model"]["merges"] = [" ".join(m) for m in data["model"]["merges"]]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.add_special_tokens([AddedToken(s, normalized=False) for s in SPECIALS[:4]])
    tokenizer.add_tokens([AddedToken(s, normalized=False, special=False) for s in SPECIALS[4:]])
    data["added_tokens"] = json.loads(tokenizer.to_str())["added_tokens"]
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(data, file, ensure_ascii=False)
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    plain = json.loads(json.dumps(data))
    plain["added_tokens"] = []
    without = Tokenizer.from_str(json.dumps(plain))
    return lambda text, special: (tokenizer if special else without).encode(text, add_special_tokens=False).ids


def load_smollm2(folder):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    data = json.load(open(os.path.join(folder, "vocabulary.json"), encoding="utf-8"))
    vocab = {token: i for i, token in enumerate(data["tokens"])}
    tokenizer = Tokenizer(models.BPE(vocab, [tuple(merge.split(" ")) for merge in data["merges"]]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False)])
    plain = tokenizer.to_str()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t, kind in zip(data["tokens"], data["types"]) if kind == 3])
    without = Tokenizer.from_str(plain)
    return lambda text, special: (tokenizer if special else without).encode(text, add_special_tokens=False).ids


def write_pieces(count, seed, out):
    from tokenizers import Regex, pre_tokenizers
    gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    split = lambda pattern: pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
    cutters = [split(KIMI_PATTERN), split(CL100K % "{1,3}"), split(CL100K % ""), split(gpt2),
               pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), split(gpt2)])]
    rng = random.Random(seed)
    with open(out, "w") as file:
        for _ in range(count):
            text = random_text(rng)
            file.write(text.encode().hex() + "\n")
            for cutter in cutters:
                file.write(" ".join(str(len(piece.encode())) for piece, _ in cutter.pre_tokenize_str(text)) + "\n")


def main():
    kind, folder, count, seed, out = sys.argv[1:]
    if kind == "pieces":
        return write_pieces(int(count), int(seed), out)
    if kind == "tiktoken":
        encode = load_tiktoken(folder)
    else:
        encode = load_smollm2(folder) if kind == "smollm2-vocabulary" else train(kind, folder)
    rng = random.Random(int(seed))
    with open(out, "w") as file:
        for i in range(int(count)):
            text, special = random_text(rng), i % 4 == 0
            if i % 50 == 0:
                text += "unreachable"
            file.write(("s" if special else "") + text.encode().hex() + "\n" + " ".join(map(str, encode(text, special))) + "\n")


if __name__ == "__main__":
    main()
