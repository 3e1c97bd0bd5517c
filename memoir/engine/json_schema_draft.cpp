#include "memoir/engine/json_schema_draft.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "memoir/base/error.h"

namespace memoir::engine {
namespace {

constexpr const char* kWhere = "json schema";
constexpr std::size_t kMaxGathered = 4U << 20;   // alternatives of all nodes together
constexpr std::size_t kMaxTextNodes = 2U << 20;  // some 50 bytes each

template <typename T>
T& at(std::vector<T>& values, int i) {
  return values[static_cast<std::size_t>(i)];
}

// Every node behind its alternatives. A node that is one of its own would be expanded for ever.
std::vector<int> alternatives_first(const SchemaDraft& draft) {
  enum class Mark { kNew, kOpen, kDone };
  std::vector<Mark> marks(draft.nodes.size(), Mark::kNew);
  std::vector<int> order;
  for (std::size_t start = 0; start < draft.nodes.size(); ++start) {
    std::vector<std::pair<std::size_t, std::size_t>> path;  // node, its next alternative
    if (marks[start] == Mark::kNew) path.emplace_back(start, 0);
    while (!path.empty()) {
      auto& [node, i] = path.back();
      marks[node] = Mark::kOpen;
      const auto& any_of = draft.nodes[node].any_of;
      if (i == any_of.size()) {
        marks[node] = Mark::kDone;
        order.push_back(static_cast<int>(node));
        path.pop_back();
        continue;
      }
      const auto next = static_cast<std::size_t>(any_of[i++]);
      if (marks[next] == Mark::kOpen) {
        throw UnsupportedError(kWhere, draft.nodes[next].place, "refers to itself without a value");
      }
      if (marks[next] == Mark::kNew) path.emplace_back(next, 0);
    }
  }
  return order;
}

void add_all(std::vector<int>& to, const std::vector<int>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

void drop_doubles(std::vector<int>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

// Gathers what each node's alternatives, and theirs, take.
class Gatherer {
 public:
  explicit Gatherer(const SchemaDraft& draft) : draft_(draft), texts_(draft.nodes.size()) {
    schema_.nodes.resize(draft.nodes.size());
    schema_.objects = draft.objects;
    schema_.arrays = draft.arrays;
    schema_.text_nodes = draft.text_nodes;
    schema_.texts = draft.texts;
    schema_.root = draft.root;
  }

  JsonSchema gather() {
    for (const int node : alternatives_first(draft_)) gather_node(node);
    return std::move(schema_);
  }

 private:
  void gather_node(int id) {
    const SchemaDraft::Node& own = draft_.nodes[static_cast<std::size_t>(id)];
    JsonSchema::Node& node = at(schema_.nodes, id);
    std::vector<int>& texts = at(texts_, id);
    node.takes_string = own.takes_string;
    node.takes_integer = own.takes_integer;
    node.takes_number = own.takes_number;
    texts = own.texts;
    if (own.object) node.objects = {*own.object};
    if (own.array) node.arrays = {*own.array};
    for (const int alternative : own.any_of) {  // each is done, by the order
      const JsonSchema::Node& other = at(schema_.nodes, alternative);
      node.takes_string |= other.takes_string;
      node.takes_integer |= other.takes_integer;
      node.takes_number |= other.takes_number;
      add_all(texts, at(texts_, alternative));
      add_all(node.objects, other.objects);
      add_all(node.arrays, other.arrays);
      count(at(texts_, alternative).size() + other.objects.size() + other.arrays.size(), own);
    }
    drop_doubles(texts);
    drop_doubles(node.objects);
    drop_doubles(node.arrays);
    check_alternatives(node.objects.size(), own, "objects");
    check_alternatives(node.arrays.size(), own, "lists");
    node.texts = texts.empty() ? -1 : trie_of(texts, own);
  }

  void count(std::size_t n, const SchemaDraft::Node& node) {
    n_gathered_ += n;
    if (n_gathered_ > kMaxGathered) throw UnsupportedError(kWhere, node.place, "the schema is too large");
  }

  static void check_alternatives(std::size_t n, const SchemaDraft::Node& node, const char* what) {
    if (n <= JsonSchema::kMaxAlternatives) return;
    throw UnsupportedError(kWhere, node.place,
                           "has " + std::to_string(n) + " alternatives that are " + what + ", more than " +
                               std::to_string(JsonSchema::kMaxAlternatives));
  }

  int trie_of(const std::vector<int>& texts, const SchemaDraft::Node& node) {
    const auto [known, is_new] = tries_.try_emplace(texts, -1);
    if (!is_new) return known->second;
    known->second = add_trie(schema_.text_nodes);
    for (const int text : texts) {
      add_to_trie(schema_.text_nodes, known->second, at(schema_.texts, text));
      if (schema_.text_nodes.size() > kMaxTextNodes) {
        throw UnsupportedError(kWhere, node.place, "the schema is too large");
      }
    }
    return known->second;
  }

  const SchemaDraft& draft_;
  JsonSchema schema_;
  std::vector<std::vector<int>> texts_;  // of each node
  std::map<std::vector<int>, int> tries_;
  std::size_t n_gathered_ = 0;
};

// The least fixed point of
//   levels(text, string, number) = 0, levels(object) = 1 + the most of its required values,
//   levels(list) = 1 + its items' if there must be one, levels(node) = the least of its alternatives,
// as D. Knuth generalized Dijkstra's shortest paths (Information Processing Letters 6(1), 1977): in ascending order, so
// that each is final when it is first reached.
class LevelFinder {
 public:
  explicit LevelFinder(JsonSchema& schema) : schema_(schema), uses_(schema.nodes.size()) {
    nodes_of_object_.resize(schema.objects.size());
    nodes_of_array_.resize(schema.arrays.size());
    n_missing_.resize(schema.objects.size());
    for (std::size_t id = 0; id < schema.nodes.size(); ++id) {
      const JsonSchema::Node& node = schema.nodes[id];
      for (const int object : node.objects) at(nodes_of_object_, object).push_back(static_cast<int>(id));
      for (const int array : node.arrays) at(nodes_of_array_, array).push_back(static_cast<int>(id));
    }
  }

  void find() {
    for (std::size_t id = 0; id < schema_.nodes.size(); ++id) {
      const JsonSchema::Node& node = schema_.nodes[id];
      if (node.takes_string || node.takes_integer || node.takes_number || node.texts >= 0) {
        reach(static_cast<int>(id), 0);
      }
    }
    for (int id = 0; id < static_cast<int>(schema_.objects.size()); ++id) begin_object(id);
    for (int id = 0; id < static_cast<int>(schema_.arrays.size()); ++id) begin_array(id);
    for (std::size_t level = 0; level < reached_.size(); ++level) {
      for (std::size_t i = 0; i < reached_[level].size(); ++i) {
        const int node = reached_[level][i];
        if (at(schema_.nodes, node).min_levels == static_cast<int>(level)) settle(node, static_cast<int>(level));
      }
    }
  }

 private:
  struct Uses {
    std::vector<int> objects;  // that require a value of the node
    std::vector<int> arrays;
  };

  void begin_object(int id) {
    for (const JsonSchema::Property& property : at(schema_.objects, id).properties) {
      if (!property.is_required) continue;
      at(uses_, property.value).objects.push_back(id);
      ++at(n_missing_, id);
    }
    if (at(n_missing_, id) == 0) settle_object(id, 1);
  }

  void begin_array(int id) {
    const JsonSchema::ArrayRule& rule = at(schema_.arrays, id);
    if (rule.min_items == 0) return settle_array(id, 1);
    at(uses_, rule.items).arrays.push_back(id);
  }

  void settle(int node, int level) {
    const Uses uses = std::move(at(uses_, node));
    for (const int object : uses.objects) {
      if (--at(n_missing_, object) == 0) settle_object(object, level + 1);
    }
    for (const int array : uses.arrays) settle_array(array, level + 1);
  }

  void settle_object(int id, int level) {
    at(schema_.objects, id).min_levels = level;
    for (const int node : at(nodes_of_object_, id)) reach(node, level);
  }

  void settle_array(int id, int level) {
    at(schema_.arrays, id).min_levels = level;
    for (const int node : at(nodes_of_array_, id)) reach(node, level);
  }

  void reach(int node, int level) {
    int& known = at(schema_.nodes, node).min_levels;
    if (known <= level) return;
    known = level;
    if (reached_.size() <= static_cast<std::size_t>(level)) reached_.resize(static_cast<std::size_t>(level) + 1);
    at(reached_, level).push_back(node);
  }

  JsonSchema& schema_;
  std::vector<Uses> uses_;  // of each node
  std::vector<std::vector<int>> nodes_of_object_;
  std::vector<std::vector<int>> nodes_of_array_;
  std::vector<int> n_missing_;             // required values of each object that are not settled
  std::vector<std::vector<int>> reached_;  // nodes by level
};

// The only thing inside a node without a value that it has none for, -1 if there is no such.
int cause_within(const SchemaDraft& draft, const JsonSchema& schema, int id) {
  const SchemaDraft::Node& node = draft.nodes[static_cast<std::size_t>(id)];
  if (node.any_of.size() == 1) return node.any_of.front();
  if (node.array && !node.object && node.any_of.empty())
    return schema.arrays[static_cast<std::size_t>(*node.array)].items;
  if (!node.object || node.array || !node.any_of.empty()) return -1;
  for (const auto& property : schema.objects[static_cast<std::size_t>(*node.object)].properties) {
    const bool has_value = schema.nodes[static_cast<std::size_t>(property.value)].min_levels != JsonSchema::kNoValue;
    if (property.is_required && !has_value) return property.value;
  }
  return -1;
}

void refuse_without_value(const SchemaDraft& draft, const JsonSchema& schema) {
  const int levels = schema.nodes[static_cast<std::size_t>(schema.root)].min_levels;
  if (levels <= JsonSchema::kMaxLevels) return;
  if (levels != JsonSchema::kNoValue) {
    throw NoValueError(kWhere, draft.nodes[static_cast<std::size_t>(schema.root)].place,
                       "its values nest " + std::to_string(levels) + " levels deep or more, " +
                           std::to_string(JsonSchema::kMaxLevels) + " can be written");
  }
  int cause = schema.root;
  std::set<int> seen;
  for (int next = cause; next >= 0 && seen.insert(next).second; next = cause_within(draft, schema, next)) cause = next;
  throw NoValueError(kWhere, draft.nodes[static_cast<std::size_t>(cause)].place,
                     "no value keeps to this, not one that ends, and the schema needs one");
}

}  // namespace

int add_trie(std::vector<JsonSchema::TextNode>& nodes) {
  nodes.emplace_back();
  return static_cast<int>(nodes.size()) - 1;
}

void add_to_trie(std::vector<JsonSchema::TextNode>& nodes, int root, const std::string& text) {
  int place = root;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const auto& next = at(nodes, place).next;
    const auto found = std::find_if(next.begin(), next.end(), [&](const auto& edge) { return edge.first == byte; });
    if (found != next.end()) {
      place = found->second;
      continue;
    }
    const int made = add_trie(nodes);
    at(nodes, place).next.emplace_back(byte, made);
    place = made;
  }
  at(nodes, place).is_end = true;
}

JsonSchema resolve(const SchemaDraft& draft) {
  JsonSchema schema = Gatherer(draft).gather();
  LevelFinder(schema).find();
  refuse_without_value(draft, schema);
  return schema;
}

}  // namespace memoir::engine
