"""Makes continuations.json and llama2.chat.json: texts cut in two, and a chat, encoded at once by `tokenizers`.

    pip install tokenizers==0.23.3
    python make_continuations.py

A text of a tokenizer's expected.json is cut between every two of its tokens: the ids of its parts must be those of the
whole. "previous" is the token before the cut. Cuts inside a character (byte tokens) or inside the space that an added
token takes away have no texts and are left out; so are those behind <unk>, which is an added token and also what an
unknown character becomes.
"""
import json
import pathlib

from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).parent
NAMES = ["llama2", "mistral", "metaspace", "gemma", "gpt2"]
MIXED = ["The dog<s>the fox</s> the dog", "a <|end|>b c", "the <|tool|>dog, the fox", "the   dog yesterday the fox"]


def cuts(tokenizer, text):
    whole = tokenizer.encode(text, add_special_tokens=False)
    for k in range(1, len(whole.ids)):
        at = whole.offsets[k][0]
        if whole.offsets[k - 1][1] != at or whole.offsets[k] == whole.offsets[k - 1] or at in (0, len(text)):
            continue
        if whole.tokens[k - 1] == "<unk>":
            continue
        # Each side must have the tokens that the whole has there, or the cut means nothing.
        if tokenizer.encode(text[:at], add_special_tokens=False).ids != whole.ids[:k]:
            continue
        yield {"before": text[:at], "previous": whole.ids[k - 1], "after": text[at:], "ids": whole.ids[k:],
               "decoded": tokenizer.decode(whole.ids, skip_special_tokens=False)}


def chat(tokenizer):
    """What a template of Llama 2's kind renders, in two turns."""
    first = "<s>[INST] Where is the dog? [/INST]"
    answer = " It is at 246"
    rest = " </s><s>[INST] And the fox? [/INST]"
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in (first, first + answer, first + answer + rest)]
    assert ids[1][:len(ids[0])] == ids[0] and ids[2][:len(ids[1])] == ids[1]
    assert tokenizer.decode(ids[1], skip_special_tokens=False).endswith(answer)
    return {"first": ids[0], "answer": ids[1][len(ids[0]):], "rest": ids[2][len(ids[1]):]}


result = {}
for name in NAMES:
    tokenizer = Tokenizer.from_file(str(HERE / f"{name}.json"))
    texts = [item["text"] for item in json.loads((HERE / f"{name}.expected.json").read_text()) if "text" in item]
    found = [cut for text in texts if len(text) < 60 for cut in cuts(tokenizer, text)]
    result[name] = [cut for text in MIXED for cut in cuts(tokenizer, text)] + found[::max(1, len(found) // 50)]
    if name == "llama2":
        (HERE / "llama2.chat.json").write_text(json.dumps(chat(tokenizer)) + "\n")
(HERE / "continuations.json").write_text(json.dumps(result, ensure_ascii=False) + "\n")
