//! `prep verify --endpoint`: the suite against a real server process on loopback, and everything that can go wrong.

use std::collections::HashMap;
use std::path::PathBuf;

use serde_json::Value;
use verify::suite::Suite;
use verify::suite::format::Expect;

use crate::args;
use crate::support::server::{Config, Fault, Request, Server, dead_url};
use crate::support::{Dir, Ended, command, fixture, prep, tiny_merged};

fn suite() -> Suite {
    Suite::default_suite().unwrap()
}

/// Full marks for every case, written as Qwen XML.
fn perfect(suite: &Suite) -> HashMap<String, String> {
    let texts = suite.steps().into_iter().map(|step| {
        let text = match step.expect {
            Expect::Calls(e) => {
                e.calls.iter().map(|c| xml(&c.name, &c.arguments)).collect::<Vec<_>>().join("\n")
            }
            Expect::Refusal(e) => format!("Sorry, I {}.", e.marks[0]),
            Expect::Text(e) => e.text.clone(),
            Expect::NoCall(e) => e.marks.first().cloned().unwrap_or("ok".into()),
        };
        (step.id, text)
    });
    texts.collect()
}

fn xml(name: &str, arguments: &serde_json::Map<String, Value>) -> String {
    let arguments = arguments.iter().map(|(k, v)| {
        let v = v.as_str().map_or_else(|| v.to_string(), str::to_string);
        format!("<parameter={k}>\n{v}\n</parameter>\n")
    });
    format!("<tool_call>\n<function={name}>\n{}</function>\n</tool_call>", arguments.collect::<String>())
}

/// The tiny model's tokenizer and template.
fn tiny_folder() -> PathBuf {
    fixture("models/qwen3-moe/adapter")
}

pub fn good() -> Config {
    Config { folder: Some(tiny_folder()), ..Config::vllm("qwen3_coder", suite(), perfect(&suite())) }
}

fn verify(server: &Server, more: &[&str]) -> Ended {
    let mut words = vec!["verify", "--endpoint", &server.url, "--parser", "qwen3_coder", "--timeout", "2"];
    words.extend(more);
    prep(words)
}

fn findings(ended: &Ended) -> String {
    ended.json()["findings"].to_string()
}

#[test]
fn a_good_server_gets_full_marks_streamed_and_whole() {
    let server = Server::start(good());
    let json = verify(&server, &["--model", "tiny", "--json"]).succeeds().json();
    assert_eq!((&json["score"], &json["findings"]), (&72.into(), &serde_json::json!([])));
    assert_eq!((&json["model"], &json["endpoint"]), (&"tiny".into(), &server.url.as_str().into()));
    for t in json["transcripts"].as_array().unwrap() {
        let served = &t["served"];
        assert_eq!(served["stream_check"]["is"], "same", "{t}");
        assert_eq!(
            (&served["parser_check"]["is"], &served["raw"]),
            (&"same".into(), &"token_ids".into()),
            "{t}"
        );
    }
    assert!(json["matrix"].as_array().unwrap().iter().any(|r| r["parser"] == "hermes" && r["points"] == 0));
    assert!(json["speed"]["tokens_per_sec"].as_f64().unwrap() > 0.0);
    verify(&server, &[]).succeeds().says("PASSED: 72/72").says("first token");
}

#[test]
fn a_server_of_the_models_own_answers_scores_as_the_folder() {
    let local = prep(args!["verify", tiny_merged(), "--parser", "qwen3_coder", "--json"]).succeeds().json();
    let text = |t: &Value| {
        (t["id"].as_str().unwrap().to_string(), t["answer"]["text"].as_str().unwrap().to_string())
    };
    let texts = local["transcripts"].as_array().unwrap().iter().map(text).collect();
    let config =
        Config { folder: Some(tiny_merged().to_path_buf()), ..Config::vllm("qwen3_coder", suite(), texts) };
    let server = Server::start(config);
    let json = verify(&server, &["--json"]).succeeds().json();
    assert_eq!(json["score"], local["score"]);
    assert_eq!(json["classes"], local["classes"]);
    assert_eq!(json["matrix"], local["matrix"]);
}

#[test]
fn every_setting_is_sent() {
    let server = Server::start(good());
    let more = [
        "--temperature",
        "0.7",
        "--top-p",
        "0.8",
        "--top-k",
        "20",
        "--seed",
        "5",
        "--max-new",
        "99",
        "--json",
    ];
    verify(&server, &[&more[..], &["--kwargs", r#"{"enable_thinking": false}"#]].concat()).succeeds();
    let chats: Vec<Request> = server.requests().into_iter().filter(|r| r.chat() && r.id != "other").collect();
    assert_eq!(chats.len(), 60);
    for r in &chats {
        let b = &r.body;
        assert_eq!((&b["temperature"], &b["top_p"], &b["top_k"]), (&0.7.into(), &0.8.into(), &20.into()));
        assert_eq!(
            (&b["seed"], &b["max_tokens"], &b["tool_choice"]),
            (&5.into(), &99.into(), &"auto".into())
        );
        assert_eq!(b["chat_template_kwargs"]["enable_thinking"], false);
    }
    assert_eq!(chats.iter().filter(|r| r.streamed()).count(), 30);
}

#[test]
fn a_server_that_is_not_vllm_gets_no_fields_of_vllm() {
    let server = Server::start(Config { owner: "someone", folder: None, ..good() });
    verify(&server, &["--json"]).succeeds().says("gave no raw text");
    for r in server.requests().iter().filter(|r| r.chat()) {
        for field in ["top_k", "min_p", "repetition_penalty", "return_token_ids"] {
            assert!(r.body.get(field).is_none(), "{field}");
        }
    }
}

#[test]
fn no_stream_asks_once() {
    let server = Server::start(good());
    let json = verify(&server, &["--no-stream", "--json"]).succeeds().json();
    assert!(server.requests().iter().all(|r| !r.streamed()));
    assert_eq!(json["transcripts"][0]["served"]["stream_check"]["is"], "not_made");
}

#[test]
fn follow_ups_go_on_from_the_servers_calls() {
    let dir = Dir::new();
    let tool = serde_json::json!({"type": "function", "function": {"name": "f", "description": "d",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": []}}});
    let file = serde_json::json!({"version": 1, "cases": [{
        "id": "a", "class": "c", "messages": [{"role": "user", "content": "q"}], "tools": [tool],
        "expect": {"calls": [{"name": "f", "arguments": {"n": 2}}]},
        "then": [{"results": [{"t": 21}], "expect": {"no_call": true, "marks": ["21"]}}]}]});
    let path = dir.join("s.json");
    std::fs::write(&path, file.to_string()).unwrap();
    let suite = Suite::read(&path).unwrap();
    let texts = perfect(&suite);
    let server =
        Server::start(Config { folder: Some(tiny_folder()), ..Config::vllm("qwen3_coder", suite, texts) });
    let json = verify(&server, &["--suite", path.to_str().unwrap(), "--json"]).succeeds().json();
    assert_eq!(json["score"], 6);
    let second = server.requests().into_iter().find(|r| r.id == "a turn 2").unwrap();
    let messages = second.body["messages"].as_array().unwrap();
    assert_eq!(messages[1]["tool_calls"][0]["function"]["arguments"], r#"{"n": 2}"#);
    assert_eq!((&messages[2]["role"], &messages[2]["content"]), (&"tool".into(), &r#"{"t":21}"#.into()));
}

#[test]
fn thinking_is_cut_as_the_server_cuts_it() {
    let think = |(id, text): (String, String)| (id, format!("Let me see.\n</think>\n\n{text}"));
    let texts: HashMap<_, _> = perfect(&suite()).into_iter().map(think).collect();
    let served = Config {
        reasoning: Some("qwen3"),
        folder: Some(tiny_folder()),
        ..Config::vllm("qwen3_coder", suite(), texts.clone())
    };
    let server = Server::start(served);
    let json = verify(&server, &["--reasoning-parser", "qwen3", "--json"]).succeeds().json();
    assert_eq!(json["transcripts"][0]["served"]["whole"]["reasoning"], "Let me see.\n");
    assert_eq!(json["transcripts"][0]["served"]["parser_check"]["is"], "same");
    let uncut = Config { folder: Some(tiny_folder()), ..Config::vllm("qwen3_coder", suite(), texts) };
    verify(&Server::start(uncut), &[])
        .says("returns the model's thinking as content")
        .says("--reasoning-parser");
}

// What the server's parser makes of the text.

#[test]
fn a_server_with_another_parser_is_told() {
    let server = Server::start(Config { parser: "hermes", ..good() });
    let ended = verify(&server, &[]).exits(1);
    let ended = ended
        .says("not one call")
        .says("--tool-call-parser qwen3_coder")
        .says("the server's calls are not what");
    ended.says("FAILED: 0/72");
}

#[test]
fn calls_that_the_text_does_not_hold_are_told() {
    let wrong = |r: &Request| if r.id == "basic-02" { Fault::OtherCall } else { Fault::None };
    let server = Server::start(good().failing(wrong));
    let ended = verify(&server, &["--json"]).exits(1);
    let found = findings(&ended);
    assert!(
        found.contains("not what `qwen3_coder` finds in its text in 1 of 30 answers, first `basic-02`"),
        "{found}"
    );
    assert_eq!(ended.json()["transcripts"][1]["served"]["parser_check"]["is"], "differs");
}

#[test]
fn streamed_calls_that_differ_are_told_only_if_they_do_so_again() {
    let always = |r: &Request| match r.streamed() && r.id == "basic-01" {
        true => Fault::OtherCall,
        false => Fault::None,
    };
    verify(&Server::start(good().failing(always)), &[])
        .exits(1)
        .says("streamed calls are not those of the whole answer in 1 of 30 answers, first `basic-01`");
    let once = move |r: &Request| if r.before == 0 { always(r) } else { Fault::None };
    verify(&Server::start(good().failing(once)), &[]).succeeds().says("does not repeat itself");
}

#[test]
fn without_token_ids_the_served_folder_gives_the_raw_text() {
    let wrong = |r: &Request| if r.id == "basic-02" { Fault::OtherCall } else { Fault::None };
    let config = Config { owner: "someone", ..good() }.failing(wrong);
    let server = Server::start(config);
    let folder = tiny_folder();
    let ended = verify(&server, &["--folder", folder.to_str().unwrap(), "--json"]).exits(1);
    let json = ended.json();
    assert_eq!(json["transcripts"][0]["served"]["raw"], "completions");
    assert_eq!(json["transcripts"][0]["served"]["parser_check"]["is"], "same");
    assert_eq!(json["transcripts"][1]["served"]["parser_check"]["is"], "differs");
    assert!(findings(&ended).contains("first `basic-02`"));
}

#[test]
fn without_a_folder_tool_choice_none_shows_the_text_of_parsers_that_leave_it_alone() {
    let json_call = |(id, text): (String, String)| match text.contains("<function=get_weather>") {
        true => (
            id,
            r#"<tool_call>{"name": "get_weather", "arguments": {"city": "Lisbon"}}</tool_call>"#.to_string(),
        ),
        false => (id, text),
    };
    let texts = perfect(&suite()).into_iter().map(json_call).collect();
    let server = Server::start(Config { owner: "someone", ..Config::vllm("hermes", suite(), texts) });
    let ended = prep(["verify", "--endpoint", &server.url, "--parser", "hermes", "--json"]);
    let json = ended.json();
    assert_eq!(json["transcripts"][0]["served"]["raw"], "tool_choice_none");
    assert_eq!(json["transcripts"][0]["served"]["parser_check"]["is"], "same");
}

#[test]
fn the_folders_tokenizer_decodes_where_the_server_does_not() {
    let server = Server::start(Config { detokenize: false, ..good() });
    let folder = tiny_folder();
    let json = verify(&server, &["--folder", folder.to_str().unwrap(), "--json"]).succeeds().json();
    assert_eq!(json["transcripts"][0]["served"]["raw"], "token_ids");
}

#[test]
fn another_template_at_the_server_is_told() {
    let dir = Dir::new();
    let other = dir.copy_of(&tiny_folder(), "other");
    let template = std::fs::read_to_string(other.join("chat_template.jinja")).unwrap();
    std::fs::write(other.join("chat_template.jinja"), format!("One more line.\n{template}")).unwrap();
    let server = Server::start(good());
    verify(&server, &["--folder", other.to_str().unwrap()])
        .says("the folder's template gives")
        .says("basic-01");
}

#[test]
fn a_parser_that_is_not_read_here_is_scored_by_its_server() {
    let server = Server::start(good());
    let words = ["verify", "--endpoint", &server.url, "--parser", "inkling"];
    prep(words)
        .succeeds()
        .says("PASSED: 72/72 with --parser inkling")
        .says("prep does not read what `inkling` reads");
    prep(args!["verify", tiny_folder(), "--parser", "inkling"]).exits(2).says("--endpoint URL");
}

// Servers that fail.

#[test]
fn one_failing_case_costs_no_other() {
    for (fault, code, says) in [
        (
            Fault::Status(500, "", r#"{"error": {"message": "list index out of range"}}"#),
            1,
            "HTTP 500: list index",
        ),
        (
            Fault::Status(400, "", r#"{"error": {"message": "the template raised"}}"#),
            1,
            "HTTP 400: the template raised",
        ),
        (Fault::Page, 1, "no JSON"),
        (Fault::Cut, 4, "was cut off"),
        (Fault::Stall, 4, "said nothing for 2 s"),
    ] {
        let kind = fault.clone();
        let failing =
            move |r: &Request| if r.id == "basic-03" && !r.streamed() { kind.clone() } else { Fault::None };
        let server = Server::start(good().failing(failing));
        let ended = verify(&server, &["--json"]).exits(code);
        let json = ended.json();
        assert_eq!((&json["score"], &json["pass"]), (&69.into(), &false.into()), "{fault:?}");
        let found = findings(&ended);
        assert!(
            found.contains("1 answer did not come, first `basic-03`") && found.contains(says),
            "{fault:?}: {found}"
        );
    }
}

#[test]
fn a_failing_stream_is_told_and_the_whole_answer_counts() {
    for (fault, says) in [
        (Fault::Cut, "was cut off"),
        (Fault::MalformedChunk, "chunk 2 is malformed"),
        (Fault::ErrorChunk, "the engine died"),
        (Fault::NoIndex, "has no `index`"),
        (Fault::Status(500, "", "{}"), "HTTP 500"),
        (Fault::Stall, "said nothing for 2 s"),
        (Fault::Page, "not with events"),
    ] {
        let kind = fault.clone();
        let failing =
            move |r: &Request| if r.id == "basic-03" && r.streamed() { kind.clone() } else { Fault::None };
        let server = Server::start(good().failing(failing));
        let ended = verify(&server, &["--json"]).exits(1);
        let found = findings(&ended);
        assert_eq!(ended.json()["score"], 72);
        assert!(found.contains("1 streamed answer did not come, first `basic-03`"), "{fault:?}: {found}");
        assert!(found.contains(says), "{fault:?}: {found}");
    }
}

#[test]
fn a_busy_server_is_waited_for() {
    let busy = |code| {
        move |r: &Request| match (r.id.as_str(), r.before) {
            ("basic-01", 0) => Fault::Status(code, "Retry-After: 1\r\n", "{}"),
            _ => Fault::None,
        }
    };
    for code in [429, 503] {
        let server = Server::start(good().failing(busy(code)));
        verify(&server, &["--no-stream"]).succeeds().says("PASSED: 72/72");
        let asked = server.requests().into_iter().filter(|r| r.id == "basic-01" && r.chat()).count();
        assert_eq!(asked, 2);
    }
    let for_ever = |r: &Request| match r.path.ends_with("/models") {
        true => Fault::Status(429, "Retry-After: 0\r\n", r#"{"error": {"message": "slow down"}}"#),
        false => Fault::None,
    };
    let server = Server::start(good().failing(for_ever));
    verify(&server, &[]).exits(4).says("too busy").says("slow down");
    assert_eq!(server.requests().len(), 4);
}

#[test]
fn a_wait_that_is_too_long_is_not_begun() {
    let long = |_: &Request| Fault::Status(503, "Retry-After: 86400\r\n", "{}");
    verify(&Server::start(good().failing(long)), &[]).exits(4).says("86400 s");
    // A date says the same; one that has passed is no wait at all.
    let never = |_: &Request| Fault::Status(503, "Retry-After: Fri, 31 Dec 9999 23:59:59 GMT\r\n", "{}");
    verify(&Server::start(good().failing(never)), &[]).exits(4).says("asks to wait");
    let passed = |r: &Request| match (r.id.as_str(), r.before) {
        ("basic-01", 0..3) => Fault::Status(503, "Retry-After: Sun, 06 Nov 1994 08:49:37 GMT\r\n", "{}"),
        _ => Fault::None,
    };
    verify(&Server::start(good().failing(passed)), &["--no-stream"]).succeeds().says("PASSED: 72/72");
}

#[test]
fn a_server_that_dies_is_given_up() {
    let dead = |r: &Request| if r.chat() && r.id != "other" { Fault::Stall } else { Fault::None };
    let server = Server::start(good().failing(dead));
    let ended = verify(&server, &["--timeout", "1", "--json"]);
    assert_eq!(ended.code, 2, "--timeout twice is refused: {}", ended.stderr);
    let words = ["verify", "--endpoint", &server.url, "--parser", "qwen3_coder", "--timeout", "1", "--json"];
    let ended = prep(words).exits(4);
    assert!(findings(&ended).contains("30 answers did not come"), "{}", findings(&ended));
    assert!(server.requests().iter().filter(|r| r.chat()).count() < 10);
}

#[test]
fn what_fails_for_every_case_ends_at_once() {
    prep(["verify", "--endpoint", &dead_url(), "--parser", "qwen3_coder"])
        .exits(4)
        .says("127.0.0.1")
        .says("cannot be reached");
    let server = Server::start(good());
    verify(&server, &["--model", "large"])
        .exits(4)
        .says("has no model `large`")
        .says("found    tiny")
        .says("--model NAME");
    let no_tools = |r: &Request| match r.chat() {
        true => Fault::Status(
            400,
            "",
            r#"{"error": {"message": "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set"}}"#,
        ),
        false => Fault::None,
    };
    verify(&Server::start(good().failing(no_tools)), &[]).exits(1).says("--tool-call-parser qwen3_coder");
    verify(&Server::start(good().failing(|_| Fault::Page)), &[]).exits(4).says("no JSON");
    let moved = |_: &Request| Fault::Status(307, "Location: http://elsewhere/v1\r\n", "");
    verify(&Server::start(good().failing(moved)), &[]).exits(4).says("sends elsewhere: http://elsewhere/v1");
}

// Keys.

const KEY: &str = "sk-very-secret-0123456789";

fn with_key(server: &Server, more: &[&str]) -> Ended {
    let mut words = vec!["verify", "--endpoint", &server.url, "--parser", "qwen3_coder", "--verbose"];
    words.extend(more);
    let mut command = command(words);
    command.env("OPENAI_API_KEY", "not-this-one").env("MY_KEY", KEY);
    Ended::of(command.output().unwrap())
}

#[test]
fn the_key_comes_from_the_environment() {
    let server = Server::start(Config { key: Some(KEY), ..good() });
    with_key(&server, &["--api-key-env", "MY_KEY"]).succeeds();
    with_key(&server, &[]).exits(4).says("refuses access").says("HTTP 401");
    with_key(&server, &["--api-key-env", "NO_SUCH"]).exits(2).says("NO_SUCH is not set");
    verify(&server, &[]).exits(4).says("OPENAI_API_KEY");
}

#[test]
fn the_key_reaches_no_log_report_or_error() {
    let dir = Dir::new();
    let reports: Vec<String> =
        ["r.html", "r.json", "r.xml"].map(|n| dir.join(n).to_str().unwrap().to_string()).to_vec();
    let mut texts = perfect(&suite());
    texts.insert("basic-01".into(), format!("my key is {KEY}"));
    let echo = |r: &Request| if r.id == "basic-02" { Fault::EchoKey } else { Fault::None };
    let config = Config { key: Some(KEY), texts, ..good() };
    let server = Server::start(config.failing(echo));
    let more: Vec<&str> = reports.iter().flat_map(|r| ["--report", r]).collect();
    let ended = with_key(&server, &[&["--api-key-env", "MY_KEY", "--json"], &more[..]].concat()).exits(1);
    assert!(ended.stdout.contains("wrong key: Bearer ***") && ended.stdout.contains("my key is ***"));
    let mut all = ended.stdout + &ended.stderr;
    reports.iter().for_each(|r| all += &std::fs::read_to_string(r).unwrap());
    assert!(!all.contains(KEY) && !all.contains("very-secret"));
}

#[cfg(target_os = "linux")]
#[test]
fn the_key_stands_in_no_process_list() {
    let server = Server::start(Config { key: Some(KEY), ..good() }.failing(|_| Fault::Stall));
    let mut command =
        command(["verify", "--endpoint", &server.url, "--parser", "qwen3_coder", "--api-key-env", "MY_KEY"]);
    let mut child = command
        .env("MY_KEY", KEY)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while server.requests().is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let line = std::fs::read(format!("/proc/{}/cmdline", child.id())).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!String::from_utf8_lossy(&line).contains(KEY));
    assert_eq!(server.requests()[0].authorization.as_deref(), Some(format!("Bearer {KEY}").as_str()));
}

#[test]
fn credentials_in_the_address_are_refused_unseen() {
    let ended =
        prep(["verify", "--endpoint", "http://me:hush@localhost:1/v1", "--parser", "qwen3_coder"]).exits(2);
    assert!(!ended.stderr.contains("hush"), "{}", ended.stderr);
    ended.says("OPENAI_API_KEY");
}

// Several rows, several runs, reports.

fn schema() -> jsonschema::Validator {
    let schema: Value = serde_json::from_str(verify::suite::REPORT_SCHEMA).unwrap();
    jsonschema::validator_for(&schema).unwrap()
}

fn valid(path: &std::path::Path) -> Value {
    let report: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let faults: Vec<String> =
        schema().iter_errors(&report).map(|e| format!("{}: {e:.200}", e.instance_path())).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    report
}

#[test]
fn folders_and_servers_make_one_table() {
    let dir = Dir::new();
    let (good, bad) =
        (Server::start(good()), Server::start(Config { parser: "hermes", model: "other", ..good() }));
    let dead = dead_url();
    let reports = ["r.html", "r.json", "r.xml"].map(|n| dir.join(n));
    let words = args![
        "verify",
        tiny_merged(),
        "--endpoint",
        good.url,
        "--endpoint",
        bad.url,
        "--endpoint",
        dead,
        "--parser",
        "qwen3_coder",
        "--report",
        reports[0],
        "--report",
        reports[1],
        "--report",
        reports[2]
    ];
    let ended = prep(&words).exits(4);
    let table = ended.stdout.split("  model").nth(1).unwrap();
    let row = |name: &str| table.lines().find(|l| l.trim_start().starts_with(name)).unwrap().to_string();
    for head in ["basic", "error_recovery", "safety", "long_context", "p50 s", "first token s", "tokens/s"] {
        assert!(table.lines().next().unwrap().contains(head), "{table}");
    }
    assert!(row("merged").contains("65/72") && row("merged").contains("passed"));
    assert!(
        row("tiny").contains("72/72") && row("other").contains("0/72") && row("other").contains("FAILED")
    );
    let ended = ended.says(&format!("{dead} was not run"));
    assert!(ended.stdout.contains("cannot be reached"));
    let report = valid(&reports[1]);
    assert_eq!((&report["pass"], report["rows"].as_array().unwrap().len()), (&false.into(), 3));
    assert_eq!(report["not_run"][0]["model"], dead.as_str());
    let page = std::fs::read_to_string(&reports[0]).unwrap();
    assert!(
        page.contains("4 models compared")
            && page.find("72/72").unwrap() < page.find("<h2>Transcripts").unwrap()
    );
    let xml = std::fs::read_to_string(&reports[2]).unwrap();
    assert!(xml.contains("tests=\"76\"") && xml.contains("classname=\"tiny.basic\""), "{xml:.400}");
    let json = prep(words.iter().cloned().chain(args!["--json"])).exits(4).json();
    assert_eq!((json["rows"].as_array().unwrap().len(), &json["rows"][1]["score"]), (4, &72.into()));
}

#[test]
fn each_row_has_its_own_model_and_parser() {
    let (a, b) = (Server::start(good()), Server::start(Config { model: "other", ..good() }));
    let words = |more: &[&str]| {
        let both = ["verify", "--endpoint", &a.url, "--endpoint", &b.url, "--json"];
        prep(both.iter().chain(more))
    };
    let json =
        words(&["--model", "tiny", "--model", "other", "--parser", "qwen3_coder", "--parser", "seed_oss"]);
    let json = json.json();
    assert_eq!(
        (&json["rows"][0]["parser"], &json["rows"][1]["parser"]),
        (&"qwen3_coder".into(), &"seed_oss".into())
    );
    words(&["--parser", "hermes", "--parser", "hermes", "--parser", "hermes"])
        .exits(2)
        .says("--parser is given 3 times");
}

#[test]
fn repeated_runs_take_the_next_seed_and_show_the_lowest() {
    let sometimes = |r: &Request| match r.id == "basic-01" && r.body["seed"] == 8 {
        true => Fault::OtherCall,
        false => Fault::None,
    };
    let dir = Dir::new();
    let (report, page) = (dir.join("r.json"), dir.join("r.html"));
    let server = Server::start(Config { owner: "someone", ..good() }.failing(sometimes));
    let more = ["--repeat", "3", "--temperature", "0.7", "--seed", "7", "--min-score", "72"];
    let files = ["--report", report.to_str().unwrap(), "--report", page.to_str().unwrap()];
    let ended = verify(&server, &[&more[..], &files].concat()).exits(1);
    ended
        .says("3 runs: 71 to 72 points, 71.7 on average; changing: basic-01")
        .says("71 of 72 points, below the 72");
    let json = valid(&report);
    assert_eq!(
        (&json["stability"]["runs"], &json["stability"]["unstable"][0]),
        (&3.into(), &"basic-01".into())
    );
    assert_eq!(json["settings"]["sampling"]["seed"], 7);
    assert!(std::fs::read_to_string(&page).unwrap().contains("71 to 72 points"));
    let mut seeds: Vec<u64> = server.requests().iter().filter_map(|r| r.body["seed"].as_u64()).collect();
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(seeds, [7, 8, 9]);
}

#[test]
fn a_folder_is_run_several_times_too() {
    let dir = Dir::new();
    let report = dir.join("r.json");
    let words = args![
        "verify",
        tiny_merged(),
        "--parser",
        "qwen3_coder",
        "--repeat",
        "2",
        "--temperature",
        "1.2",
        "--top-p",
        "0.9",
        "--report",
        report
    ];
    let first = prep(&words);
    assert!(first.stdout.contains("2 runs: "), "{}", first.stdout);
    let one = valid(&report);
    prep(&words);
    let two = valid(&report);
    assert_eq!(
        (&one["evaluation"]["cases"], &one["stability"]),
        (&two["evaluation"]["cases"], &two["stability"])
    );
    prep(args!["verify", tiny_merged(), "--parser", "qwen3_coder", "--repeat", "2"])
        .exits(2)
        .says("--temperature");
    prep(args!["verify", tiny_merged(), "--parser", "qwen3_coder", "--top-p", "0"]).exits(2).says("top_p");
}

#[test]
fn json_reports_of_every_kind_follow_the_schema() {
    let dir = Dir::new();
    let report = dir.join("r.json");
    prep(args!["verify", tiny_merged(), "--parser", "hermes", "--report", report]).exits(1);
    assert!(valid(&report).get("endpoint").is_none());
    let folder = tiny_folder();
    let failing = |r: &Request| match (r.id.as_str(), r.streamed()) {
        ("basic-01", false) | ("basic-02", true) => Fault::Cut,
        ("basic-03", _) => Fault::CallsAsText,
        ("basic-04", false) => Fault::OtherCall,
        _ => Fault::None,
    };
    let server = Server::start(good().failing(failing));
    let path = report.to_str().unwrap();
    verify(&server, &["--folder", folder.to_str().unwrap(), "--report", path]).exits(4);
    let json = valid(&report);
    let cases = json["transcripts"].as_array().unwrap();
    assert_eq!(cases[0]["lost"]["to"], "network");
    assert_eq!(cases[1]["served"]["stream_check"]["is"], "lost");
    assert_eq!(cases[3]["served"]["stream_check"]["is"], "differs");
    let mut broken = json.clone();
    broken["verdict"]["pass"] = "yes".into();
    assert!(!schema().is_valid(&broken));
    broken = json;
    broken["surprise"] = 1.into();
    assert!(!schema().is_valid(&broken));
}

#[test]
fn a_thinking_template_brings_its_reasoning_parser() {
    let dir = Dir::new();
    let model = dir.copy_of(tiny_merged(), "model");
    std::fs::remove_file(model.join("SHA256SUMS")).unwrap();
    let template = std::fs::read_to_string(model.join("chat_template.jinja")).unwrap();
    let think = format!("{template}{{% if add_generation_prompt %}}<think>\n{{% endif %}}");
    std::fs::write(model.join("chat_template.jinja"), think).unwrap();
    let verify = |more: &[&str]| {
        let words = args!["verify", model, "--parser", "qwen3_coder", "--max-new", "4"];
        prep(words.into_iter().chain(more.iter().map(std::ffi::OsString::from)))
    };
    assert!(verify(&[]).stdout.contains("read with --reasoning-parser qwen3"));
    for named in ["none", "deepseek_r1"] {
        assert!(!verify(&["--reasoning-parser", named]).stdout.contains("makes the model think"));
    }
}
