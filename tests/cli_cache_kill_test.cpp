// A prompt-cache file is the old one or the new one, whole, when the program that writes it is killed at any moment or
// finds no room on the disk.

#include <gtest/gtest.h>
#include <mlx/mlx.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "memoir/cache/kv.h"
#include "memoir/cache/prompt_file.h"
#include "tests/cli_runner.h"

extern char** environ;

namespace memoir {
namespace {

namespace fs = std::filesystem;
namespace mx = mlx::core;
using Clock = std::chrono::steady_clock;

class CliCacheKill : public test::Cli {
 protected:
  // n_tokens rows of 8 kB in each of two layers.
  void write_cache(const std::string& path, int n_tokens, float value) const {
    std::vector<std::unique_ptr<cache::LayerCache>> layers;
    for (int i = 0; i < 2; ++i) {
      auto layer = cache::make_kv_cache(cache::KVOptions{});
      const mx::array rows = mx::full({1, 8, n_tokens, 128}, value, mx::float32);
      layer->update(rows, rows);
      layers.push_back(std::move(layer));
    }
    cache::save_prompt_file(path, cache::ModelCache(std::move(layers)), {});
  }

  static pid_t start_convert(const std::string& from, const std::string& to) {
    std::vector<std::string> words = {MEMOIR_PROGRAM, "cache", "convert", "-o", to, from};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_t pid = 0;
    EXPECT_EQ(posix_spawn(&pid, MEMOIR_PROGRAM, nullptr, nullptr, arguments.data(), environ), 0);
    return pid;
  }

  static int wait_for(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    return status;
  }

  int n_left_aside() const {
    int n = 0;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      n += entry.path().filename().string().find(".part-") != std::string::npos ? 1 : 0;
    }
    return n;
  }
};

TEST_F(CliCacheKill, AtAnyMomentLeavesTheOldFileOrTheNewOne) {
  const std::string a = in_folder("a.safetensors");
  const std::string b = in_folder("b.safetensors");
  const std::string target = in_folder("target.safetensors");
  write_cache(a, 1000, 1);
  write_cache(b, 999, 2);
  const std::string contents[] = {test::read_file(a), test::read_file(b)};
  Clock::duration whole = Clock::duration::max();
  for (int i = 0; i < 3; ++i) {
    const auto begin = Clock::now();
    ASSERT_EQ(wait_for(start_convert(a, target)), 0);
    whole = std::min(whole, Clock::now() - begin);
  }
  ASSERT_EQ(test::read_file(target), contents[0]);

  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::uniform_int_distribution<Clock::rep> moment(0, whole.count() * 5 / 4);
  int old = 0;
  int n_new = 0;
  for (int i = 0; i < 30; ++i) {
    const int next = 1 - old;
    const pid_t pid = start_convert(next == 0 ? a : b, target);
    std::this_thread::sleep_for(Clock::duration(moment(random)));
    kill(pid, SIGKILL);
    wait_for(pid);
    const std::string now = test::read_file(target);
    ASSERT_TRUE(now == contents[0] || now == contents[1]) << now.size() << " bytes after kill " << i;
    if (now == contents[next]) ++n_new;
    old = now == contents[0] ? 0 : 1;
  }
  std::printf("%d of 30 were done before they were killed, %d left a file aside\n", n_new, n_left_aside());
  EXPECT_EQ(run("cache check " + target).status, 0);
}

// Of this file, by nobody who still writes, and not of this moment.
TEST_F(CliCacheKill, WhatKilledOnesLeftAsideGoesWithTheNextSave) {
  const std::string a = in_folder("a.safetensors");
  const std::string target = in_folder("target.safetensors");
  write_cache(a, 10, 1);
  const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
  const std::string abandoned = target + ".part-12";
  const std::string fresh = target + ".part-13";
  const std::string others = in_folder("another.safetensors.part-14");
  const std::string unlike = target + ".part-x";
  for (const std::string& path : {abandoned, fresh, others, unlike}) {
    std::ofstream(path) << "rows";
    if (path != fresh) fs::last_write_time(path, long_ago);
  }
  ASSERT_EQ(wait_for(start_convert(a, target)), 0);
  EXPECT_FALSE(fs::exists(abandoned));
  EXPECT_TRUE(fs::exists(fresh));
  EXPECT_TRUE(fs::exists(others));
  EXPECT_TRUE(fs::exists(unlike));
}

TEST_F(CliCacheKill, ANameAsLongAsTheSystemTakesIsSaved) {
  const std::string a = in_folder("a.safetensors");
  write_cache(a, 10, 1);
  const std::string target = in_folder(std::string(255, 'x'));
  ASSERT_EQ(wait_for(start_convert(a, target)), 0);
  EXPECT_EQ(test::read_file(target), test::read_file(a));
  EXPECT_EQ(n_left_aside(), 0);
}

// The limit stands in for the disk's end: writing beyond it fails.
TEST_F(CliCacheKill, AFileThatDoesNotFitLeavesTheOldOne) {
  const std::string small = in_folder("small.safetensors");
  const std::string large = in_folder("large.safetensors");
  write_cache(small, 1, 1);
  write_cache(large, 200, 1);
  const std::string before = test::read_file(small);
  const std::string limit = "trap '' XFSZ; ulimit -f 1000; ";
  const test::Outcome outcome = shell(limit + std::string(MEMOIR_PROGRAM) + " cache convert -o " + small + " " + large);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find(small), std::string::npos) << outcome.err;
  EXPECT_EQ(test::read_file(small), before);
  EXPECT_EQ(n_left_aside(), 0);
}

TEST_F(CliCacheKill, AFullDiskLeavesTheOldOne) {
  const std::string disk = in_folder("disk");
  fs::create_directory(disk);
  const std::string in_own = "unshare -rm sh -c 'mount -t tmpfs -o size=1m none " + disk + " && ";
  if (shell(in_own + "true'").status != 0) GTEST_SKIP() << "no small disk can be mounted here";
  write_cache(in_folder("small"), 1, 1);
  write_cache(in_folder("large"), 200, 1);
  const std::string target = disk + "/cache.safetensors";
  const test::Outcome outcome =
      shell(in_own + "cp " + in_folder("small") + " " + target + " && { " + MEMOIR_PROGRAM + " cache convert -o " +
            target + " " + in_folder("large") + "; echo status $?; cmp " + target + " " + in_folder("small") +
            " && echo the old one; ls " + disk + " | wc -l; }'");
  EXPECT_EQ(outcome.out.substr(0, 9), "status 1\n") << outcome.err;
  EXPECT_NE(outcome.out.find("the old one\n1\n"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.err.find(target), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace memoir
