// Modelfiles, after Ollama's description of the format (docs/modelfile in its repository): commands, quotations, lines,
// and what is refused with its line.

#include "memoir/model/modelfile.h"

#include <gtest/gtest.h>

#include <string>

#include "memoir/base/error.h"

namespace memoir::model {
namespace {

Modelfile parsed(const std::string& text) {
  return parse_modelfile(text, "Modelfile");
}

std::string error_of(const std::string& text) {
  try {
    parsed(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Modelfile, SaysWhereFromAndDraftStand) {
  ModelfileLines lines;
  parse_modelfile("# one\nSYSTEM \"\"\"two\nthree\"\"\"\n  FROM a\n\tdraft b\n", "Modelfile", &lines);
  EXPECT_EQ(lines.from, 4);
  EXPECT_EQ(lines.draft, 5);
  parse_modelfile("FROM a", "Modelfile", &lines);
  EXPECT_EQ(lines.from, 1);
  EXPECT_EQ(lines.draft, 0);
}

TEST(Modelfile, ReadsEveryCommand) {
  const Modelfile all = parsed(
      "# a comment\n"
      "FROM ./model  \n"
      "draft \"a drafter\"\n"
      "Parameter temperature 0.5\n"
      "PARAMETER top_p 0.9\nPARAMETER min_p 0.05\nPARAMETER top_k 40\nPARAMETER repeat_penalty 1.1\n"
      "PARAMETER presence_penalty -0.5\nPARAMETER frequency_penalty 0.25\nPARAMETER repeat_last_n -1\n"
      "PARAMETER seed 18446744073709551615\nPARAMETER num_predict 128\nPARAMETER num_thread 4\n"
      "PARAMETER draft_num_predict 6\n"
      "PARAMETER stop \"<|end|>\"\n"
      "PARAMETER stop  two words \n"
      "SYSTEM \"\"\"You say \"yes\".\n# always\n\"\"\"\n"
      "MESSAGE user Is it?\n"
      "MESSAGE assistant \"yes\nand no\"\n"
      "TEMPLATE {{ messages[0].content }}\n"
      "LICENSE one\nLICENSE two");
  EXPECT_EQ(all.from, "./model");
  EXPECT_EQ(all.draft, "a drafter");
  const ModelfileParameters& p = all.parameters;
  EXPECT_EQ(p.temperature, 0.5);
  EXPECT_EQ(p.top_p, 0.9);
  EXPECT_EQ(p.min_p, 0.05);
  EXPECT_EQ(p.top_k, 40);
  EXPECT_EQ(p.repeat_penalty, 1.1);
  EXPECT_EQ(p.presence_penalty, -0.5);
  EXPECT_EQ(p.frequency_penalty, 0.25);
  EXPECT_EQ(p.repeat_last_n, -1);
  EXPECT_EQ(p.seed, 18446744073709551615U);
  EXPECT_EQ(p.num_predict, 128);
  EXPECT_EQ(p.num_thread, 4);
  EXPECT_EQ(p.draft_num_predict, 6);
  EXPECT_EQ(p.stop, (std::vector<std::string>{"<|end|>", "two words"}));
  EXPECT_EQ(all.system, "You say \"yes\".\n# always\n");
  EXPECT_EQ(all.messages, (std::vector<ModelfileMessage>{{"user", "Is it?"}, {"assistant", "yes\nand no"}}));
  EXPECT_EQ(all.chat_template, "{{ messages[0].content }}");
  EXPECT_EQ(all.licenses, (std::vector<std::string>{"one", "two"}));
  EXPECT_TRUE(all.notes.empty());
}

TEST(Modelfile, TheLeastIsFrom) {
  const Modelfile least = parsed("FROM smollm2");
  Modelfile expected;
  expected.from = "smollm2";
  EXPECT_EQ(least, expected);
  EXPECT_EQ(parsed("\r\n  FROM smollm2\r\n"), expected);
  EXPECT_EQ(parsed("from \"smollm2\""), expected);
  EXPECT_EQ(parsed("\xEF\xBB\xBF"
                   "FROM smollm2"),
            expected);  // as editors begin UTF-8
  EXPECT_NE(error_of("\xEF\xBB\xBF\xEF\xBB\xBF"
                     "FROM smollm2"),
            "no error");
}

TEST(Modelfile, ItsTextReadsAsTheSame) {
  for (const char* text :
       {"FROM a", "FROM a b\nDRAFT c", "FROM \" a\"\nSYSTEM \"\"", "FROM a\nSYSTEM \"\"\"say \"x\"\n and \"y\" \"\"\"",
        "FROM a\nPARAMETER temperature 0.1\nPARAMETER seed 7\nPARAMETER stop \"\n\"\nPARAMETER stop a\"b",
        "FROM a\nMESSAGE user \"\nx\"\nMESSAGE assistant y # z\nLICENSE \"\"\"\n\n\"\"\"",
        "FROM a\nTEMPLATE \"\"\"{% for m in messages %}\n{{ m['content'] }}\n{% endfor %}\"\"\""}) {
    const Modelfile first = parsed(text);
    EXPECT_EQ(parsed(modelfile_text(first)), first) << text;
  }
}

TEST(Modelfile, UnknownAndRepeatedCommandsAreRefusedWithTheirLine) {
  EXPECT_EQ(
      error_of("FROM a\n\nRENDERER x\n"),
      "Modelfile: line 3: RENDERER is no command: there are FROM, DRAFT, PARAMETER, TEMPLATE, SYSTEM, MESSAGE and "
      "LICENSE");
  EXPECT_EQ(error_of("FROM a\nfrom b"), "Modelfile: line 2: FROM is there already, in line 1");
  for (const char* command : {"DRAFT", "SYSTEM", "TEMPLATE", "PARAMETER top_k", "PARAMETER num_ctx"}) {
    const std::string line = std::string(command) + " 1\n";
    EXPECT_EQ(error_of("FROM a\n" + line + "# x\n" + line),
              std::string("Modelfile: line 4: ") + command + " is there already, in line 2");
  }
  // Lines of a quotation count.
  EXPECT_EQ(error_of("FROM a\nSYSTEM \"\"\"\n\n\n\"\"\"\nWHAT x"), error_of("FROM a\n\n\n\n\nWHAT x"));
}

TEST(Modelfile, WhatMemoirDoesNotDoIsRefusedWithTheReason) {
  EXPECT_EQ(
      error_of("FROM a\nADAPTER ./lora"),
      "Modelfile: line 2: ADAPTER is not supported: merge the adapter into the weights, and name those with FROM");
  for (const char* go : {"{{ .Prompt }}", "{{- if .System }}x{{ end }}", "{{ range $i, $m := .Messages }}{{ end }}",
                         "a {{ messages }} {{-  .Response }}"}) {
    EXPECT_NE(error_of(std::string("FROM a\nTEMPLATE ") + go).find("line 2: TEMPLATE is in the language of Go's"),
              std::string::npos)
        << go;
  }
  EXPECT_NE(error_of("FROM a\nTEMPLATE {% for %}").find("TEMPLATE in line 2: line 1"), std::string::npos);
  EXPECT_NE(error_of("FROM a\nPARAMETER mirostat 2").find("line 2: PARAMETER mirostat is a way"), std::string::npos);
  EXPECT_EQ(error_of("FROM a\nPARAMETER mirostat 0\nPARAMETER tfs_z 1\nPARAMETER typical_p 1.0"), "no error");
  EXPECT_EQ(parsed("FROM a\nPARAMETER num_ctx 4096").notes,
            (std::vector<std::string>{"line 2: PARAMETER num_ctx has no effect"}));
}

TEST(Modelfile, ATemplateThatAlwaysFailsIsRefusedWithItsLineAndTheReason) {
  EXPECT_EQ(error_of("FROM a\n\nTEMPLATE \"\"\"\n{{ raise_exception('never') }}\"\"\"\nSYSTEM x"),
            "Modelfile: line 3: TEMPLATE fails for a user's message: the template: line 2: never");
  EXPECT_NE(error_of("FROM a\nTEMPLATE {{ messages[0].parts.text }}")
                .find("line 2: TEMPLATE fails for a user's message: the template: line 1: "),
            std::string::npos);
  EXPECT_NE(
      error_of("FROM a\nTEMPLATE {% if tools %}x{% endif %}").find("line 2: TEMPLATE fails for a user's message: no"),
      std::string::npos);
  // What is wanted of a conversation may be there, and what tokenizers have.
  EXPECT_EQ(
      error_of("FROM a\nTEMPLATE {% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}x\n"
               "SYSTEM y"),
      "no error");
  EXPECT_EQ(
      error_of("FROM a\nMESSAGE user x\nTEMPLATE {% if messages|length > 1 %}{{ raise_exception('x') }}{% endif %}x"),
      "no error");
  EXPECT_EQ(error_of("FROM a\nTEMPLATE {{ bos_token + messages[0].content + eos_token }}"), "no error");
}

TEST(Modelfile, WrongValuesAreRefusedWithTheirLine) {
  struct Wrong {
    const char* line;
    const char* message;
  };
  for (const Wrong& wrong :
       {Wrong{"PARAMETER temperature warm", "PARAMETER temperature 'warm' is not such a number"},
        Wrong{"PARAMETER temperature -1", "PARAMETER temperature '-1' is out of its range"},
        Wrong{"PARAMETER temperature nan", "PARAMETER temperature 'nan' is out of its range"},
        Wrong{"PARAMETER top_p 0", "PARAMETER top_p '0' is out of its range"},
        Wrong{"PARAMETER top_k 1.5", "PARAMETER top_k '1.5' is not such a number"},
        Wrong{"PARAMETER seed -1", "PARAMETER seed '-1' is not such a number"},
        Wrong{"PARAMETER draft_num_predict 16", "PARAMETER draft_num_predict '16' is out of"},
        Wrong{"PARAMETER stop \"\"", "PARAMETER stop is an empty text"},
        Wrong{"PARAMETER warmth 1", "PARAMETER warmth is no parameter that memoir knows"},
        Wrong{"PARAMETER", "PARAMETER  has no value"}, Wrong{"PARAMETER top_k", "PARAMETER top_k has no value"},
        Wrong{"MESSAGE tool x", "MESSAGE is of 'tool', expected user, assistant or system"},
        Wrong{"MESSAGE user", "MESSAGE has no value"}, Wrong{"SYSTEM", "SYSTEM has no value"},
        Wrong{"DRAFT \"\"", "DRAFT has no value"}, Wrong{"SYSTEM \"\"\"a", "SYSTEM has a quotation without end"},
        Wrong{"SYSTEM \"a\nb", "SYSTEM has a quotation without end"},
        Wrong{"SYSTEM \"a\" b", "SYSTEM goes on behind its quotation"}}) {
    const std::string error = error_of(std::string("FROM a\n") + wrong.line);
    EXPECT_TRUE(error.starts_with(std::string("Modelfile: line 2: ") + wrong.message)) << error;
  }
  EXPECT_EQ(error_of(""), "Modelfile: has no FROM, which says what the model is made of");
  EXPECT_EQ(error_of("# FROM a"), error_of(""));
  EXPECT_EQ(error_of("FROM \xff"), "Modelfile: is not UTF-8");
}

}  // namespace
}  // namespace memoir::model
