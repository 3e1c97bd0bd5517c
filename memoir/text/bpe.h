#pragma once

// Byte-pair encoding of one word: start from its characters and merge neighbours until no rule applies.
//
// Two kinds of rule, both in O(n log n) by a heap over a linked list:
//   - MergeBpe: a table of pairs in order of rank (GPT-2 and everything made with tokenizers);
//   - ScoreBpe: two neighbours merge if their text is a token, best score first (SentencePiece, llama.cpp's "llama").
// The lowest rank or best score goes first, the leftmost pair among equals.
// Ownership: both refer to a Vocabulary that must outlive them. Threads: const use from any number of threads.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memoir/base/types.h"
#include "memoir/text/vocabulary.h"

namespace memoir::text {

/// Merges by pair of tokens: an open hash table in one block, because encoding asks it a few times per character.
class PairTable {
 public:
  struct Merge {
    std::uint32_t rank;
    TokenId id;
  };

  void reserve(std::size_t n_merges);

  /// Adds or replaces; returns false, changing nothing, if the pair is there and `replace` is not set.
  bool insert(TokenId left, TokenId right, Merge merge, bool replace);

  /// nullptr where the pair does not merge.
  const Merge* find(TokenId left, TokenId right) const;

 private:
  struct Slot {
    std::uint64_t pair;
    Merge merge;
  };
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};

  std::size_t slot_of(std::uint64_t pair) const;
  void grow(std::size_t n_slots);

  std::vector<Slot> slots_;
  std::size_t n_used_ = 0;
};

struct MergeBpeOptions {
  bool ignore_merges = false;   // a word that is a token is that token, whatever the merges say
  bool whole_newlines = false;  // the same, for words of nothing but newlines
  bool byte_fallback = false;   // a character that is no token becomes its bytes' tokens <0x00>..<0xFF>
  bool fuse_unk = false;        // neighbouring unknown characters give one unknown token
  std::optional<TokenId> unk;   // for unknown characters; they are dropped where there is none
  // Unknown characters are dropped only after merging, so that their neighbours don't meet (llama.cpp).
  bool unknown_blocks_merges = false;
  std::string continuing_prefix = {};  // in front of every character of a word but the first
  std::string end_suffix = {};         // behind the last character of a word
};

class MergeBpe {
 public:
  MergeBpe(const Vocabulary& vocabulary, MergeBpeOptions options);

  /// The next rule in order of rank: `left` then `right` become `merged`. A repeated pair takes the later rank if
  /// `replace`, else keeps the first.
  void add_merge(TokenId left, TokenId right, TokenId merged, bool replace);

  void reserve_merges(std::size_t n_merges) { merges_.reserve(n_merges); }

  /// Memory that the words of one text share. One at a time per thread.
  class Scratch;

  /// Appends the tokens of a word. `word` must be valid UTF-8.
  void encode(std::string_view word, std::vector<TokenId>& out, Scratch& scratch) const;

 private:
  using Merge = PairTable::Merge;
  struct Symbol {
    TokenId id;  // kNone: an unknown character that blocks merges
    std::int32_t previous;
    std::int32_t next;
    bool alive;
  };
  static constexpr TokenId kNone = -1;

  const Merge* merge_of(TokenId left, TokenId right) const;
  void start(std::string_view word, std::vector<Symbol>& symbols) const;
  void add_unknown(std::string_view text, std::vector<Symbol>& symbols, bool& last_is_unk) const;
  void merge_all(Scratch& scratch) const;
  TokenId char_id(std::string_view text) const;

  const Vocabulary& vocabulary_;
  MergeBpeOptions options_;
  PairTable merges_;
  std::vector<TokenId> two_byte_chars_;  // ids of the characters below U+0800, where words are plain characters
  std::array<TokenId, 256> byte_ids_{};  // of <0x00>..<0xFF>
  std::uint32_t n_merges_ = 0;
};

class MergeBpe::Scratch {
 private:
  friend class MergeBpe;
  std::vector<Symbol> symbols_;
  std::vector<std::uint64_t> heap_;  // merges that may happen: rank, then the place of the left symbol
};

class ScoreBpe {
 public:
  /// scores: one for each id (missing ones count as 0). Bytes without a token <0xNN> of their own become `unk`.
  ScoreBpe(const Vocabulary& vocabulary, std::vector<float> scores, std::optional<TokenId> unk);

  /// Appends the tokens of a text. `text` must be valid UTF-8.
  void encode(std::string_view text, std::vector<TokenId>& out) const;

 private:
  struct Symbol {
    std::size_t begin;
    std::size_t n_bytes;  // 0: merged into its left neighbour
    std::int32_t previous;
    std::int32_t next;
  };
  struct Pair {
    float score;
    std::int32_t left;
    std::size_t n_bytes;
  };

  void consider(std::string_view text, const std::vector<Symbol>& symbols, std::int32_t left,
                std::vector<Pair>& heap) const;
  void emit(std::string_view symbol, std::vector<TokenId>& out) const;

  const Vocabulary& vocabulary_;
  std::vector<float> scores_;
  std::optional<TokenId> unk_;
  std::array<TokenId, 256> byte_ids_{};
};

/// "<0x0A>" for 10.
std::string byte_token_text(unsigned char byte);

/// 10 for "<0x0A>" or "<0x0a>", nullopt for anything else.
std::optional<unsigned char> byte_of_token_text(std::string_view text);

}  // namespace memoir::text
