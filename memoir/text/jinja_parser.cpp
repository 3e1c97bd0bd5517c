#include <set>
#include <string_view>
#include <unordered_map>

#include "memoir/text/jinja_ast.h"
#include "memoir/text/jinja_builtins.h"
#include "memoir/text/jinja_error.h"
#include "memoir/text/jinja_expression_parser.h"

namespace memoir::text::jinja {
namespace {

class StatementParser : public ExpressionParser {
 public:
  explicit StatementParser(const std::string& source) : ExpressionParser(tokenize(source)) {}

  Program run() {
    Program program;
    program.body = parse_block({}, "");
    if (!unknown_names_.empty()) throw unknown_names_.front();
    program.names = take_names();
    return program;
  }

 private:
  using EndTags = std::vector<std::string_view>;

  std::unique_ptr<Stmt> make(StmtKind kind, int line) const {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = line;
    return stmt;
  }

  // Statements up to one of the end tags (its name is then the current token), or the template's end where there
  // is none. `opened` names the tag that wants the end.
  Block parse_block(const EndTags& end_tags, std::string_view opened) {
    const Nesting nesting(block_depth_, kMaxStatementDepth, "blocks", current().line);
    Block block;
    while (true) {
      const Token& token = current();
      switch (token.kind) {
        case TokenKind::kData:
          output_of(block, token.line).expressions.push_back(constant(Value::string(token.text), token.line));
          skip();
          break;
        case TokenKind::kVariableBegin:
          skip();
          output_of(block, token.line).expressions.push_back(parse_tuple());
          expect(TokenKind::kVariableEnd, "end of print statement");
          break;
        case TokenKind::kBlockBegin:
          skip();
          for (const std::string_view tag : end_tags) {
            if (current().is_name(tag)) return block;
          }
          block.push_back(parse_statement(end_tags, opened));
          expect(TokenKind::kBlockEnd, "end of statement block");
          break;
        default:
          if (end_tags.empty()) return block;
          fail("Unexpected end of template: '" + std::string(opened) + "' is not closed by '" +
                   std::string(end_tags.back()) + "'",
               token.line);
      }
    }
  }

  static bool is_output(const Block& block) { return !block.empty() && block.back()->kind == StmtKind::kOutput; }

  Stmt& output_of(Block& block, int line) const {
    if (!is_output(block)) block.push_back(make(StmtKind::kOutput, line));
    return *block.back();
  }

  // The body of a tag: after its head, up to one of the end tags.
  Block parse_body(const EndTags& end_tags, std::string_view opened) {
    skip_operator(":");
    expect(TokenKind::kBlockEnd, "end of statement block");
    return parse_block(end_tags, opened);
  }

  Block parse_whole_body(std::string_view end_tag, std::string_view opened) {
    Block body = parse_body({end_tag}, opened);
    skip();
    return body;
  }

  std::unique_ptr<Stmt> parse_statement(const EndTags& end_tags, std::string_view opened) {
    const Token& token = current();
    if (!token.is(TokenKind::kName)) fail("tag name expected", token.line);
    using Parse = std::unique_ptr<Stmt> (StatementParser::*)();
    static const std::unordered_map<std::string_view, Parse> kParsers = {
        {"for", &StatementParser::parse_for},
        {"if", &StatementParser::parse_if},
        {"set", &StatementParser::parse_set},
        {"with", &StatementParser::parse_with},
        {"macro", &StatementParser::parse_macro},
        {"call", &StatementParser::parse_call_block},
        {"filter", &StatementParser::parse_filter_block},
        {"print", &StatementParser::parse_print},
        {"generation", &StatementParser::parse_generation},
        {"break", &StatementParser::parse_loop_control},
        {"continue", &StatementParser::parse_loop_control},
    };
    if (const auto found = kParsers.find(token.text); found != kParsers.end()) return (this->*found->second)();
    static const std::set<std::string_view> kUnsupported = {"block",  "extends", "include",
                                                            "import", "from",    "autoescape"};
    if (kUnsupported.count(token.text) != 0) {
      fail_unsupported("the tag {% " + token.text + " %} is not supported", token.line);
    }
    std::string message = "Encountered unknown tag '" + token.text + "'.";
    if (!end_tags.empty()) {
      message += " '" + std::string(opened) + "' is still to be closed by '" + std::string(end_tags.back()) + "'.";
    }
    fail(message, token.line);
  }

  std::unique_ptr<Stmt> parse_for() {
    auto stmt = make(StmtKind::kFor, current().line);
    skip();
    ++for_depth_;  // no name `loop` may be assigned anywhere in it
    stmt->target = parse_target(false);
    expect_name("in");
    stmt->value = parse_tuple(false);
    if (skip_name("if")) stmt->condition = parse_expression();
    stmt->recursive = skip_name("recursive");
    {
      const LoopBody loop(*this, *stmt);
      stmt->body = parse_body({"else", "endfor"}, "for");
    }
    const bool has_else = current().is_name("else");
    skip();
    if (has_else) stmt->otherwise = parse_whole_body("endfor", "for");
    --for_depth_;
    return stmt;
  }

  std::unique_ptr<Stmt> parse_if() {
    auto stmt = make(StmtKind::kIf, current().line);
    skip();
    ++conditional_depth_;
    while (true) {
      Branch& branch = stmt->branches.emplace_back();
      branch.condition = parse_tuple(false);
      branch.body = parse_body({"elif", "else", "endif"}, "if");
      const std::string tag = current().text;
      skip();
      if (tag == "elif") continue;
      if (tag == "else") stmt->branches.emplace_back().body = parse_whole_body("endif", "if");
      break;
    }
    --conditional_depth_;
    return stmt;
  }

  std::unique_ptr<Stmt> parse_set() {
    auto stmt = make(StmtKind::kSet, current().line);
    skip();
    stmt->target = parse_target(true);
    if (skip_operator("=")) {
      stmt->value = parse_tuple();
      return stmt;
    }
    stmt->kind = StmtKind::kSetBlock;
    stmt->value = parse_filters(nullptr);
    stmt->body = parse_whole_body("endset", "set");
    return stmt;
  }

  std::unique_ptr<Stmt> parse_with() {
    auto stmt = make(StmtKind::kWith, current().line);
    skip();
    while (!current().is(TokenKind::kBlockEnd)) {
      if (!stmt->assignments.empty()) expect_operator(",");
      ExprPtr target = parse_target(false, true);
      expect_operator("=");
      stmt->assignments.emplace_back(std::move(target), parse_expression());
    }
    stmt->body = parse_whole_body("endwith", "with");
    return stmt;
  }

  std::unique_ptr<Stmt> parse_macro() {
    auto stmt = make(StmtKind::kMacro, current().line);
    skip();
    stmt->target = parse_name_target(true);
    stmt->macro = std::make_unique<MacroNode>();
    stmt->macro->name = stmt->target->text;
    parse_signature(*stmt->macro);
    parse_macro_body(*stmt->macro, "endmacro", "macro");
    return stmt;
  }

  std::unique_ptr<Stmt> parse_call_block() {
    auto stmt = make(StmtKind::kCallBlock, current().line);
    skip();
    stmt->macro = std::make_unique<MacroNode>();
    stmt->macro->name = "caller";
    if (current().is_operator("(")) parse_signature(*stmt->macro);
    stmt->value = parse_expression();
    if (stmt->value->kind != ExprKind::kCall) fail("expected call", stmt->line);
    parse_macro_body(*stmt->macro, "endcall", "call");
    return stmt;
  }

  void parse_signature(MacroNode& macro) {
    expect_operator("(");
    while (!current().is_operator(")")) {
      if (!macro.parameters.empty()) expect_operator(",");
      const ExprPtr parameter = parse_name_target(true);
      macro.parameters.push_back(parameter->name);
      macro.parameter_names.push_back(parameter->text);
      if (skip_operator("=")) {
        macro.defaults.push_back(parse_expression());
      } else if (!macro.defaults.empty()) {
        fail("non-default argument follows default argument", current().line);
      }
    }
    expect_operator(")");
  }

  void parse_macro_body(MacroNode& macro, std::string_view end_tag, std::string_view opened) {
    const FunctionBody function(*this, &macro);
    macro.body = parse_whole_body(end_tag, opened);
  }

  std::unique_ptr<Stmt> parse_filter_block() {
    auto stmt = make(StmtKind::kFilterBlock, current().line);
    skip();
    stmt->value = parse_filters(nullptr, true);
    stmt->body = parse_whole_body("endfilter", "filter");
    return stmt;
  }

  std::unique_ptr<Stmt> parse_print() {
    auto stmt = make(StmtKind::kOutput, current().line);
    skip();
    while (!current().is(TokenKind::kBlockEnd)) {
      if (!stmt->expressions.empty()) expect_operator(",");
      stmt->expressions.push_back(parse_expression());
    }
    return stmt;
  }

  std::unique_ptr<Stmt> parse_generation() {
    auto stmt = make(StmtKind::kGeneration, current().line);
    skip();
    const FunctionBody function(*this, nullptr);
    stmt->body = parse_whole_body("endgeneration", "generation");
    return stmt;
  }

  std::unique_ptr<Stmt> parse_loop_control() {
    const Token& token = current();
    auto stmt = make(token.text == "break" ? StmtKind::kBreak : StmtKind::kContinue, token.line);
    if (loop_depth_ == 0) fail("'" + token.text + "' outside of a loop", token.line);
    skip();
    return stmt;
  }
};

}  // namespace

Program parse_program(const std::string& source) {
  return StatementParser(source).run();
}

}  // namespace memoir::text::jinja
