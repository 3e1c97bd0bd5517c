// Runs a fuzz target without libFuzzer: every seed, then mutations of it. The same arguments give the same inputs on
// every machine, but for --seconds, which may end the run early.
//
//   NAME [--mutations N] [--seconds S] FILE_OR_FOLDER...
//
// An input that crashes the target stays behind in NAME.input; give it as the only FILE, with --mutations 0, to see it
// again.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;

struct Options {
  std::uint64_t n_mutations = 1000;  // of each seed
  double seconds = 1e9;              // for all of them
  std::vector<fs::path> inputs;
};

Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--mutations" && i + 1 < argc) {
      options.n_mutations = std::stoull(argv[++i]);
    } else if (argument == "--seconds" && i + 1 < argc) {
      options.seconds = std::stod(argv[++i]);
    } else if (argument.starts_with("--")) {
      throw std::invalid_argument("unknown option " + std::string(argument));
    } else {
      options.inputs.emplace_back(argument);
    }
  }
  return options;
}

Bytes read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("can't read " + path.string());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// The files among `inputs` and in its folders, in the order of their names.
std::vector<Bytes> read_seeds(const std::vector<fs::path>& inputs) {
  std::vector<fs::path> paths;
  for (const fs::path& input : inputs) {
    if (!fs::is_directory(input)) {
      paths.push_back(input);
      continue;
    }
    for (const auto& entry : fs::recursive_directory_iterator(input)) {
      if (entry.is_regular_file()) paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> seeds;
  for (const fs::path& path : paths) seeds.push_back(read_file(path));
  return seeds;
}

class Mutator {
 public:
  // Keeps a reference to `seeds`, whose pieces it mixes.
  explicit Mutator(const std::vector<Bytes>& seeds) : seeds_(seeds) {}

  // A few changes of `bytes`, chosen by `number` alone.
  Bytes mutate(Bytes bytes, std::uint64_t number) {
    random_.seed(number);
    for (std::size_t n_changes = 1 + below(4); n_changes > 0; --n_changes) change(bytes);
    return bytes;
  }

 private:
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }

  // A place to insert at: up to and including the end.
  std::ptrdiff_t place(const Bytes& bytes) { return static_cast<std::ptrdiff_t>(below(bytes.size() + 1)); }

  void change(Bytes& bytes) {
    if (bytes.empty()) return insert(bytes);
    switch (below(7)) {
      case 0:
        bytes[below(bytes.size())] ^= static_cast<std::uint8_t>(1U << below(8));
        return;
      case 1:
        bytes[below(bytes.size())] = static_cast<std::uint8_t>(below(256));
        return;
      case 2:
        return write_integer(bytes);
      case 3:
        bytes.resize(below(bytes.size()));
        return;
      case 4:
        return erase(bytes);
      case 5:
        return insert(bytes);
      default:
        return splice(bytes);
    }
  }

  // Sizes and counts that parsers get wrong, in the 1, 2, 4 or 8 bytes of a little-endian field.
  void write_integer(Bytes& bytes) {
    static constexpr std::uint64_t kValues[] = {0,          1,          0x7f,       0x80,       0xff,       0x7fff,
                                                0xffff,     0x7fffffff, 0x80000000, 0xffffffff, 1ULL << 32, 1ULL << 61,
                                                1ULL << 62, ~0ULL >> 1, 1ULL << 63, ~0ULL};
    const std::uint64_t value = kValues[below(std::size(kValues))];
    const std::size_t width = std::size_t{1} << below(4);
    const std::size_t start = below(bytes.size());
    for (std::size_t i = 0; i < width && start + i < bytes.size(); ++i) {
      bytes[start + i] = static_cast<std::uint8_t>(value >> (8 * i));
    }
  }

  void erase(Bytes& bytes) {
    const std::size_t start = below(bytes.size());
    const std::size_t count = std::min(1 + below(16), bytes.size() - start);
    const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(start);
    bytes.erase(first, first + static_cast<std::ptrdiff_t>(count));
  }

  void insert(Bytes& bytes) {
    const std::size_t count = 1 + below(8);
    const auto value = static_cast<std::uint8_t>(below(256));
    bytes.insert(bytes.begin() + place(bytes), count, value);
  }

  // A piece of some seed, put somewhere.
  void splice(Bytes& bytes) {
    const Bytes& other = seeds_[below(seeds_.size())];
    if (other.empty()) return;
    const std::size_t start = below(other.size());
    const std::size_t count = std::min(1 + below(64), other.size() - start);
    const auto first = other.begin() + static_cast<std::ptrdiff_t>(start);
    bytes.insert(bytes.begin() + place(bytes), first, first + static_cast<std::ptrdiff_t>(count));
  }

  const std::vector<Bytes>& seeds_;
  std::mt19937_64 random_;
};

// Runs the target, with the input on disk while it runs.
void run(const Bytes& bytes, const fs::path& input_file) {
  {
    std::ofstream out(input_file, std::ios::binary | std::ios::trunc);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (!out.flush()) throw std::runtime_error("can't write " + input_file.string());
  }
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

int run_all(const Options& options, const fs::path& input_file) {
  const std::vector<Bytes> seeds = read_seeds(options.inputs);
  if (seeds.empty()) throw std::runtime_error("no seeds");
  run({}, input_file);
  for (const Bytes& seed : seeds) run(seed, input_file);

  // Round by round, so that every seed has its turn before the time is up.
  Mutator mutator(seeds);
  const auto start = std::chrono::steady_clock::now();
  std::uint64_t n_inputs = 1 + seeds.size();
  for (std::uint64_t round = 0; round < options.n_mutations; ++round) {
    for (std::size_t i = 0; i < seeds.size(); ++i, ++n_inputs) {
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      if (elapsed.count() > options.seconds) round = options.n_mutations - 1;
      run(mutator.mutate(seeds[i], round * seeds.size() + i), input_file);
    }
  }
  fs::remove(input_file);
  std::cout << n_inputs << " inputs from " << seeds.size() << " seeds\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  // Uncaught from the target on purpose: an exception that leaves it is a crash, as under libFuzzer.
  Options options;
  try {
    options = parse_options(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
  return run_all(options, fs::path(argv[0]).stem().string() + ".input");
}
