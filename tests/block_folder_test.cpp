// Blocks in a directory: what is read is what was written, anything else is a miss, whatever happens to the files, the
// disk and the processes. Without MLX.

#include "memoir/prefix/block_folder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <optional>
#include <set>
#include <thread>

#include "memoir/base/error.h"
#include "memoir/base/replaced_file.h"
#include "memoir/prefix/block_writer.h"
#include "memoir/prefix/stored_tree.h"
#include "tests/damaged_bytes.h"

namespace fs = std::filesystem;

namespace memoir::prefix {
namespace {

using Keys = std::vector<Key>;
using Bytes = std::vector<std::byte>;
using Names = std::set<std::string>;

constexpr std::uint64_t kPlenty = std::uint64_t{1} << 30;

/// n keys that count up from `first`.
Keys counted(int n, Key first = 0) {
  Keys keys(static_cast<std::size_t>(n));
  std::iota(keys.begin(), keys.end(), first);
  return keys;
}

Keys joined(Keys a, const Keys& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Bytes payload_of(std::size_t n_bytes, int seed = 1) {
  Bytes bytes(n_bytes);
  for (std::size_t i = 0; i < n_bytes; ++i) bytes[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(seed));
  return bytes;
}

class Folder : public testing::Test {
 protected:
  Folder() {
    std::string name = (fs::temp_directory_path() / "memoir-blocks-XXXXXX").string();
    root_ = mkdtemp(name.data());
    path_ = root_ / "cache";
  }
  ~Folder() override {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }

  std::unique_ptr<BlockFolder> open(std::uint64_t max_bytes = kPlenty, const std::string& identity = "model") const {
    return std::make_unique<BlockFolder>(BlockFolderOptions{path_, identity, max_bytes});
  }

  static BlockJob job_of(const BlockFolder& folder, BlockKind kind, const Keys& keys, const Bytes& payload) {
    const KeyChain chain(folder.space(), keys);
    const auto held = std::make_shared<Bytes>(payload);
    BlockJob job;
    job.name = chain.name(kind, chain.n_keys());
    job.beginning = block_beginning({folder.identity(), "note", kind, keys}, payload.size());
    job.own_keys.assign(keys.begin() + job.name.from, keys.end());
    job.payload = {std::span(*held).first(held->size() / 2), std::span(*held).subspan(held->size() / 2)};
    job.owner = held;
    return job;
  }

  /// Writes one block, and says what it is called.
  static BlockName put(BlockFolder& folder, const Keys& keys, BlockKind kind = BlockKind::kRows,
                       std::size_t n_bytes = 100) {
    BlockWriter writer(folder, kPlenty, [](const std::string& why) { ADD_FAILURE() << why; });
    BlockJob job = job_of(folder, kind, keys, payload_of(n_bytes));
    const BlockName name = job.name;
    writer.add(std::move(job));
    return name;
  }

  /// The payload, if it can be had.
  static std::optional<Bytes> get(BlockFolder& folder, const BlockName& name, const Keys& keys) {
    const auto file = folder.open(name, keys, name.to);
    if (!file) return std::nullopt;
    Bytes bytes(file->payload_bytes());
    const std::vector<std::span<std::byte>> pieces = {bytes};
    try {
      file->read_payload(pieces);
      return bytes;
    } catch (const FormatError&) {
      folder.discard(name);
      return std::nullopt;
    }
  }

  static int reach(BlockFolder& folder, const Keys& keys, int from = 0) {
    const auto parts = folder.find_rows(KeyChain(folder.space(), keys), from);
    return parts.empty() ? 0 : parts.back().to;
  }

  Names names() const {
    Names result;
    for (const auto& entry : fs::directory_iterator(path_)) result.insert(entry.path().filename().string());
    return result;
  }

  void write_file(const std::string& name, const Bytes& bytes) const {
    std::ofstream(path_ / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }

  /// Calls `run` in a process of its own, which ends with its result.
  static pid_t fork_and(const std::function<int()>& run) {
    const pid_t child = fork();
    if (child == 0) _exit(run());
    return child;
  }
  static int wait_for(pid_t child) {
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  fs::path root_;
  fs::path path_;
};

// ---- Names and digests

// The published XXH3 digests of nothing (https://github.com/Cyan4973/xxHash, tests/sanity_test_vectors.h, seed 0).
TEST(BlockName, DigestsAreXxh3) {
  EXPECT_EQ(Checksum().hex(), "2d06800538d394c2");
  EXPECT_EQ(Checksum().digest().hex(), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(Digest::parse("99aa06d3014798d86001c324468d497f"), Checksum().digest());
  for (const char* const text : {"", "99aa", "99AA06d3014798d86001c324468d497f", "99aa06d3014798d86001c324468d497g"}) {
    EXPECT_EQ(Digest::parse(text), std::nullopt);
  }
}

TEST(BlockName, IsReadBackAndNothingElseIs) {
  const Keys keys = counted(700);
  const KeyChain chain(space_of("x"), keys);
  for (const int to : {1, 255, 256, 257, 512, 700}) {
    for (const BlockKind kind : {BlockKind::kRows, BlockKind::kState}) {
      const BlockName name = chain.name(kind, to);
      EXPECT_EQ(BlockName::parse(name.file_name()), name);
      EXPECT_EQ(name.from, (to - 1) / 256 * 256);
    }
  }
  const std::string good = chain.name(BlockKind::kRows, 300).file_name();
  for (std::size_t i = 0; i < good.size(); ++i) {
    EXPECT_EQ(BlockName::parse(good.substr(0, i)), std::nullopt);
    std::string bad = good;
    bad[i] = '/';
    EXPECT_EQ(BlockName::parse(bad), std::nullopt);
  }
  const std::string rest = good.substr(good.find("-256-300-") + 9);
  for (const char* const offsets : {"-0256-300-", "-256-0300-", "-0-300-", "-256-513-", "-256-256-", "-256-+300-"}) {
    EXPECT_EQ(BlockName::parse(chain.name(BlockKind::kRows, 300).space + "-rows" + offsets + rest), std::nullopt);
  }
}

TEST(BlockName, EveryKeyBeforeItCounts) {
  const Keys keys = counted(600);
  const std::string space = space_of("x");
  const Digest whole = KeyChain(space, keys).at(600);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    Keys other = keys;
    other[i] ^= Key{1} << (i % 64);
    EXPECT_NE(KeyChain(space, other).at(600), whole) << i;
  }
  EXPECT_NE(KeyChain(space_of("y"), keys).at(600), whole);
  EXPECT_EQ(KeyChain(space, joined(keys, {1, 2, 3})).at(600), whole);
}

// ---- Files

TEST(BlockFile, SaysWhatItWasMadeOf) {
  for (const Keys& keys : {counted(3), counted(256), counted(600), joined(counted(300), {Key{1} << 63, 5})}) {
    const BlockHead head{"identity", R"({"a": 1})", BlockKind::kState, keys};
    Bytes bytes = block_beginning(head, 10);
    const Bytes payload = payload_of(10);
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    Checksum checksum;
    checksum.add(bytes);
    const Bytes end = block_end(checksum.value());
    bytes.insert(bytes.end(), end.begin(), end.end());
    const BlockFile file(test::source_of(bytes));
    EXPECT_EQ(file.identity(), head.identity);
    EXPECT_EQ(file.note(), head.note);
    EXPECT_EQ(file.kind(), head.kind);
    EXPECT_EQ(file.keys(), keys);
    Bytes read(10);
    const std::vector<std::span<std::byte>> pieces = {std::span(read).first(3), std::span(read).subspan(3)};
    file.read_payload(pieces);
    EXPECT_EQ(read, payload);
    file.check();
    EXPECT_THROW(file.read_payload(std::span(pieces).first(1)), std::invalid_argument);
  }
}

TEST_F(Folder, EveryTruncationAndEveryDamagedByteIsAMissAndTheFileGoes) {
  const Keys keys = counted(3);
  const auto folder = open();
  const BlockName name = put(*folder, keys, BlockKind::kRows, 5);
  const Bytes valid = test::file_bytes(path_ / name.file_name());
  ASSERT_EQ(get(*folder, name, keys), payload_of(5));
  const auto expect_miss = [&](const Bytes& bytes) {
    if (bytes == valid) return;  // a zero that was one
    write_file(name.file_name(), bytes);
    ASSERT_EQ(get(*folder, name, keys), std::nullopt);
    ASSERT_EQ(names(), Names());
  };
  test::for_each_truncation(valid, expect_miss);
  test::for_each_damage(valid, expect_miss);
  Bytes longer = valid;
  longer.push_back(std::byte{0});
  expect_miss(longer);
  write_file(name.file_name(), valid);
  EXPECT_EQ(get(*folder, name, keys), payload_of(5));
}

TEST_F(Folder, WhatIsOfOtherKeysOrOfAnotherModelIsAMissAndStays) {
  const Keys keys = counted(300);
  const auto folder = open();
  const BlockName name = put(*folder, keys);
  Keys other = keys;
  other[17] = 99'999;  // as if digests met
  EXPECT_EQ(get(*folder, name, other), std::nullopt);
  EXPECT_EQ(names(), Names{name.file_name()});
  const auto stranger = open(kPlenty, "another");
  EXPECT_EQ(reach(*stranger, keys, 256), 0);
  BlockName theirs = name;
  theirs.space = stranger->space();
  fs::rename(path_ / name.file_name(), path_ / theirs.file_name());
  EXPECT_EQ(get(*stranger, theirs, keys), std::nullopt);
  EXPECT_EQ(names(), Names{theirs.file_name()});
}

// ---- Lookups

TEST_F(Folder, RowsAreFoundAsFarAsKeysAgreeAlsoInsideABlock) {
  const auto folder = open();
  const Keys keys = counted(700);
  for (const int to : {256, 512, 700}) put(*folder, Keys(keys.begin(), keys.begin() + to));
  for (const bool is_restarted : {false, true}) {
    const auto again = is_restarted ? open() : nullptr;
    BlockFolder& used = is_restarted ? *again : *folder;
    EXPECT_EQ(reach(used, keys), 700);
    EXPECT_EQ(reach(used, joined(keys, {1, 2, 3})), 700);
    EXPECT_EQ(reach(used, counted(699)), 699);
    EXPECT_EQ(reach(used, counted(600)), 600);
    EXPECT_EQ(reach(used, joined(counted(600), {1})), 600);
    EXPECT_EQ(reach(used, joined(counted(300), {1, 2})), 300);
    EXPECT_EQ(reach(used, joined(counted(5), {1})), 5);
    EXPECT_EQ(reach(used, {77}), 0);
    EXPECT_EQ(reach(used, keys, 650), 700);  // memory has the rest
  }
  fs::remove(path_ / KeyChain(folder->space(), keys).name(BlockKind::kRows, 512).file_name());
  EXPECT_EQ(folder->open(KeyChain(folder->space(), keys).name(BlockKind::kRows, 512), keys, 512), nullptr);
  EXPECT_EQ(reach(*folder, keys), 256);
  EXPECT_EQ(reach(*folder, keys, 600), 700);
}

TEST_F(Folder, CheckpointsAreFoundTheDeepestFirst) {
  const auto folder = open();
  const Keys keys = counted(900);
  for (const int to : {100, 256, 700, 896}) put(*folder, Keys(keys.begin(), keys.begin() + to), BlockKind::kState);
  put(*folder, joined(counted(600), counted(100, 5000)), BlockKind::kState);  // at 700 too
  const auto offsets = [&](const Keys& asked, int above) {
    std::vector<int> result;
    for (const BlockName& name : open()->find_states(KeyChain(folder->space(), asked), above))
      result.push_back(name.to);
    return result;
  };
  EXPECT_EQ(offsets(keys, 0), (std::vector<int>{896, 700, 256, 100}));
  EXPECT_EQ(offsets(counted(896), 256), (std::vector<int>{896, 700}));
  EXPECT_EQ(offsets(counted(895), 0), (std::vector<int>{700, 256, 100}));
  EXPECT_EQ(offsets(joined(counted(600), counted(200, 5000)), 0), (std::vector<int>{700, 256, 100}));
  EXPECT_EQ(offsets(joined(counted(200), {1}), 0), (std::vector<int>{100}));
}

TEST_F(Folder, ALongerBlockReplacesTheShorterOnesOfItsKeys) {
  const auto folder = open();
  const BlockName shorter = put(*folder, counted(270));
  const BlockName branch = put(*folder, joined(counted(260), {7}));
  const BlockName state = put(*folder, counted(270), BlockKind::kState);
  const BlockName longer = put(*folder, counted(300));
  EXPECT_EQ(names(), (Names{branch.file_name(), state.file_name(), longer.file_name()}));
  EXPECT_EQ(reach(*folder, counted(270), 256), 270);
}

TEST_F(Folder, TwoUsersSeeWhatTheOtherWrites) {
  const auto first = open();
  const auto second = open();
  const BlockName name = put(*first, counted(100));
  EXPECT_EQ(reach(*second, counted(100)), 0);
  second->refresh(true);
  EXPECT_EQ(reach(*second, counted(100)), 100);
  put(*second, counted(100));  // the same again
  EXPECT_EQ(names(), Names{name.file_name()});
  fs::remove(path_ / name.file_name());
  EXPECT_EQ(get(*first, name, counted(100)), std::nullopt);
  EXPECT_EQ(first->n_files(), 0U);
  second->refresh(true);
  EXPECT_EQ(second->size_bytes(), 0U);
}

// ---- The budget

TEST_F(Folder, TheLeastRecentlyUsedGoesWhoseverItIs) {
  const auto other = open(kPlenty, "another");
  put(*other, counted(10), BlockKind::kRows, 1000);
  const auto folder = open(6000);
  std::vector<BlockName> blocks;
  for (int i = 0; i < 4; ++i)
    blocks.push_back(put(*folder, counted(10, 1000 * static_cast<Key>(i)), BlockKind::kRows, 1000));
  const auto now = fs::file_time_type::clock::now();
  for (const auto& entry : fs::directory_iterator(path_))
    fs::last_write_time(entry.path(), now - std::chrono::hours(1));
  for (int i = 0; i < 4; ++i) {
    fs::last_write_time(path_ / blocks[static_cast<std::size_t>(i)].file_name(), now - std::chrono::minutes(10 - i));
  }
  folder->touch(blocks[0]);
  put(*folder, counted(10, 9000), BlockKind::kRows, 1000);  // six do not fit
  EXPECT_LE(folder->size_bytes(), 6000U);
  EXPECT_EQ(reach(*folder, counted(10, 0)), 10);
  EXPECT_EQ(reach(*folder, counted(10, 3000)), 10);
  EXPECT_EQ(reach(*folder, counted(10, 9000)), 10);
  other->refresh(true);
  EXPECT_EQ(reach(*other, counted(10)), 0);  // it was the oldest
  std::uint64_t n_bytes = 0;
  for (const auto& entry : fs::directory_iterator(path_)) n_bytes += entry.file_size();
  EXPECT_EQ(n_bytes, folder->size_bytes());
}

TEST_F(Folder, PromptsShrinkFromTheirEnds) {
  const Keys keys = counted(1024);
  {
    const auto folder = open();
    for (const int to : {256, 512, 768, 1024})
      put(*folder, Keys(keys.begin(), keys.begin() + to), BlockKind::kRows, 1000);
  }
  std::uint64_t n_bytes = 0;
  for (const auto& entry : fs::directory_iterator(path_)) n_bytes += entry.file_size();
  const auto smaller = open(n_bytes - 1);
  EXPECT_EQ(reach(*smaller, keys), 768);
  for (const auto& part : smaller->find_rows(KeyChain(smaller->space(), keys), 0)) smaller->touch(part.name);
  EXPECT_EQ(reach(*open(smaller->size_bytes() - 1), keys), 512);
}

TEST_F(Folder, WhatIsLargerThanTheBudgetIsNotWrittenButSaid) {
  const auto folder = open(2000);
  put(*folder, counted(10), BlockKind::kRows, 500);
  std::string said;
  {
    BlockWriter writer(*folder, kPlenty, [&said](const std::string& why) { said += why; });
    writer.add(job_of(*folder, BlockKind::kRows, counted(10, 50), payload_of(5000)));
    writer.flush();
    EXPECT_FALSE(writer.is_on());
  }
  EXPECT_NE(said.find("more than all may have"), std::string::npos) << said;
  EXPECT_EQ(folder->n_files(), 1U);
}

// ---- What others leave in the directory

TEST_F(Folder, ForeignFilesStay) {
  fs::create_directories(path_ / "folder.block");
  write_file("notes.txt", payload_of(10));
  write_file("x.block", payload_of(10));
  write_file("notes.txt.part-17", payload_of(10));
  const Names before = names();
  const auto folder = open(1);
  EXPECT_EQ(folder->n_files(), 0U);
  EXPECT_TRUE(folder->make_room(1));
  EXPECT_EQ(names(), before);
}

TEST_F(Folder, PartsOfKilledWritersAreRemovedAtTheStartAndThoseOfLivingOnesStay) {
  const auto folder = open();
  const BlockName name = put(*folder, counted(10));
  write_file(name.file_name() + ".part-12", payload_of(10));
  ReplacedFile living(path_ / name.file_name());
  ASSERT_EQ(names().size(), 3U);
  open();
  EXPECT_EQ(names().size(), 2U);
  living.write("x");
  living.commit();
  EXPECT_EQ(names(), Names{name.file_name()});
}

// ---- For people

TEST_F(Folder, StoredTreesShowForksAndWhatEndsInsideBlocks) {
  {
    const auto folder = open();
    put(*folder, counted(256));
    put(*folder, counted(300), BlockKind::kState);
    put(*folder, counted(512));
    put(*folder, joined(counted(280), {7, 8}));
    put(*folder, counted(900), BlockKind::kState);  // nothing else is there between 512 and it
    put(*open(kPlenty, "another"), counted(3));
    write_file("junk.block", payload_of(3));
    BlockName damaged = KeyChain(folder->space(), counted(9)).name(BlockKind::kRows, 9);
    write_file(damaged.file_name(), payload_of(3));
  }
  const std::vector<StoredTree> trees = stored_trees(path_);
  ASSERT_EQ(trees.size(), 2U);
  EXPECT_EQ(trees[0].identity, "another");
  EXPECT_EQ(trees[0].n_files, 1U);
  EXPECT_EQ(trees[1].n_files, 5U);
  struct Line {
    int parent, from, to;
    bool has_rows, has_checkpoint;
    bool operator==(const Line&) const = default;
  };
  std::vector<Line> lines;
  std::uint64_t n_bytes = 0;
  for (const StoredNode& node : trees[1].nodes) {
    lines.push_back({node.parent ? static_cast<int>(*node.parent) : -1, node.from, node.to, node.row_bytes > 0,
                     node.checkpoint_bytes > 0});
    n_bytes += node.row_bytes + node.checkpoint_bytes;
    EXPECT_EQ(node.keys.size(), static_cast<std::size_t>(node.to - node.from));
  }
  EXPECT_EQ(n_bytes, trees[1].n_bytes);
  const std::vector<Line> expected = {{-1, 0, 256, true, false},   {0, 256, 282, true, false},
                                      {0, 256, 300, false, true},  {2, 300, 512, true, false},
                                      {3, 512, 768, false, false}, {4, 768, 900, false, true}};
  EXPECT_TRUE(lines == expected);
  EXPECT_THROW(stored_trees(root_ / "nowhere"), FileError);
}

// ---- The writer

TEST_F(Folder, AFullQueueDropsTheOldest) {
  const auto folder = open();
  BlockWriter writer(*folder, 3000, nullptr);
  std::vector<BlockName> blocks;
  for (int i = 0; i < 50; ++i) {
    BlockJob job = job_of(*folder, BlockKind::kRows, counted(10, 100 * static_cast<Key>(i)), payload_of(1000));
    blocks.push_back(job.name);
    writer.add(std::move(job));
  }
  writer.flush();
  const BlockWriterCounters counters = writer.counters();
  EXPECT_EQ(counters.n_written + counters.n_dropped, 50U);
  EXPECT_EQ(folder->n_files(), counters.n_written);
  EXPECT_TRUE(folder->contains(blocks.back()));  // what comes last is never dropped
  for (const BlockName& name : blocks) EXPECT_EQ(writer.is_missing(name), !folder->contains(name));
}

TEST_F(Folder, ADiskThatIsFullIsSaidOnceAndWhatIsThereCanBeRead) {
  { put(*open(), counted(10)); }
  // A process whose files may have 4 KB: larger ones fail as on a full disk.
  const int status = wait_for(fork_and([this] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    const auto folder = open();
    int n_warnings = 0;
    {
      BlockWriter writer(*folder, kPlenty, [&](const std::string&) { ++n_warnings; });
      for (int i = 1; i < 5; ++i) {
        writer.add(job_of(*folder, BlockKind::kRows, counted(10, 100 * static_cast<Key>(i)), payload_of(100'000)));
      }
      writer.flush();
      if (writer.is_on() || writer.counters().n_written != 0) return 1;
    }
    if (n_warnings != 1) return 2;
    return reach(*folder, counted(10)) == 10 && folder->n_files() == 1 ? 0 : 3;
  }));
  EXPECT_EQ(status, 0);
  EXPECT_EQ(names().size(), 1U);  // nothing is left behind
}

TEST_F(Folder, ADirectoryThatCanOnlyBeReadServesAndIsSaidOnce) {
  const Keys keys = counted(10);
  const BlockName name = put(*open(), keys);
  fs::permissions(root_, fs::perms(0755));
  fs::permissions(path_, fs::perms(0555));
  const int status = wait_for(fork_and([&] {
    if (geteuid() == 0 && setuid(65534) != 0) return 77;  // root may write everywhere
    const auto folder = open();
    int n_warnings = 0;
    {
      BlockWriter writer(*folder, kPlenty, [&](const std::string&) { ++n_warnings; });
      if (n_warnings != 1 || writer.is_on()) return 3;  // before there is anything to write
      for (int i = 1; i < 5; ++i) {
        writer.add(job_of(*folder, BlockKind::kRows, counted(10, 100 * static_cast<Key>(i)), payload_of(100)));
      }
    }
    if (n_warnings != 1) return 1;
    return get(*folder, name, keys) == payload_of(100) ? 0 : 2;
  }));
  fs::permissions(path_, fs::perms(0755));
  if (status == 77) GTEST_SKIP() << "no other user to be";
  EXPECT_EQ(status, 0);
}

TEST_F(Folder, ADirectoryThatCannotBeMadeIsAnEmptyOne) {
  std::ofstream(root_ / "cache") << "a file";
  const auto folder = open();
  int n_warnings = 0;
  {
    BlockWriter writer(*folder, kPlenty, [&](const std::string&) { ++n_warnings; });
    EXPECT_EQ(n_warnings, 1) << "before there is anything to write";
    writer.add(job_of(*folder, BlockKind::kRows, counted(10), payload_of(10)));
  }
  EXPECT_EQ(n_warnings, 1);
  EXPECT_EQ(reach(*folder, counted(10)), 0);
}

TEST_F(Folder, ADirectoryThatItMakesIsItsUsersAlone) {
  open();
  EXPECT_EQ(fs::status(path_).permissions(), fs::perms::owner_all);
  fs::permissions(path_, fs::perms(0755));
  open();
  EXPECT_EQ(fs::status(path_).permissions(), fs::perms(0755));
}

TEST_F(Folder, ADirectoryThatIsRemovedMeanwhileIsMadeAgain) {
  const auto folder = open();
  put(*folder, counted(10));
  fs::remove_all(path_);
  put(*folder, counted(10, 100));
  EXPECT_EQ(names().size(), 1U);
}

// Whenever the writer is killed, the next start finds whole blocks and nothing else.
TEST_F(Folder, AKilledWriterLeavesWholeBlocksOnly) {
  const Keys prompt = counted(256 * 40);
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork_and([&] {
      const auto folder = open();
      BlockWriter writer(*folder, kPlenty, nullptr);
      for (int to = 256; to <= static_cast<int>(prompt.size()); to += 256) {
        writer.add(job_of(*folder, BlockKind::kRows, Keys(prompt.begin(), prompt.begin() + to), payload_of(200'000)));
      }
      writer.flush();
      pause();
      return 0;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(1 + 3 * round));
    kill(child, SIGKILL);
    wait_for(child);
    const auto folder = open();
    for (const std::string& name : names()) {
      ASSERT_TRUE(BlockName::parse(name)) << name;
      EXPECT_EQ(get(*folder, *BlockName::parse(name), prompt), payload_of(200'000));
    }
    EXPECT_EQ(reach(*folder, prompt), static_cast<int>(folder->n_files()) * 256);
    if (round % 4 == 3) fs::remove_all(path_);
  }
}

TEST_F(Folder, TwoProcessesWriteAndReadOneDirectory) {
  const Keys common = counted(512);
  const auto work = [&](Key own) {
    const auto folder = open(200'000);  // too little for all
    BlockWriter writer(*folder, kPlenty, [](const std::string&) { _exit(9); });
    for (int i = 0; i < 60; ++i) {
      const Keys keys = i % 3 == 0 ? common : joined(counted(256), counted(20, own + 100 * static_cast<Key>(i)));
      writer.add(job_of(*folder, BlockKind::kRows, Keys(keys.begin(), keys.begin() + 256), payload_of(5000)));
      writer.add(job_of(*folder, BlockKind::kRows, keys, payload_of(5000)));
      if (i % 5 == 0) writer.flush();
      folder->refresh(true);
      for (const auto& part : folder->find_rows(KeyChain(folder->space(), keys), 0)) {
        const auto bytes = get(*folder, part.name, keys);
        if (bytes && *bytes != payload_of(5000)) return 1;
      }
    }
    writer.flush();
    return folder->counters().n_damaged == 0 ? 0 : 2;
  };
  const pid_t first = fork_and([&] { return work(10'000); });
  const pid_t second = fork_and([&] { return work(50'000); });
  EXPECT_EQ(wait_for(first), 0);
  EXPECT_EQ(wait_for(second), 0);
  const auto folder = open(200'000);
  EXPECT_LE(folder->size_bytes(), 200'000U);
  EXPECT_GT(folder->n_files(), 10U);
}

}  // namespace
}  // namespace memoir::prefix
