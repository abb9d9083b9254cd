//! A server on loopback that answers as vLLM does, or in one of the ways in which servers fail.
//!
//! It has no model: its texts are given, for the conversations of a suite. What it makes of them is the work of the
//! parser that it is "started" with.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use runner::Tokenizer;
use serde_json::{Value, json};
use verify::parsers::{Context, Parsed, find, find_reasoning};
use verify::suite::Suite;
use verify::template::{Renderer, Request as Conversation};

/// One request as it came.
#[derive(Debug, Clone)]
pub struct Request {
    pub path: String,
    pub authorization: Option<String>,
    pub body: Value,
    /// Name of the turn that it asks for.
    pub id: String,
    /// How many requests for this turn came before, in this way (path, streamed or not).
    pub before: usize,
}

impl Request {
    pub fn streamed(&self) -> bool {
        self.body["stream"] == true
    }

    pub fn chat(&self) -> bool {
        self.path.ends_with("/chat/completions")
    }
}

/// What goes wrong with an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    None,
    /// Status, further headers, body.
    Status(u16, &'static str, &'static str),
    /// The connection ends in the middle of the body.
    Cut,
    /// A chunk that is no JSON.
    MalformedChunk,
    /// A chunk that says that the server failed.
    ErrorChunk,
    /// Calls without `index`.
    NoIndex,
    /// A page instead of JSON.
    Page,
    /// Nothing comes, for ever.
    Stall,
    /// Another call than the text holds.
    OtherCall,
    /// Calls as plain text.
    CallsAsText,
    /// The key comes back in an error.
    EchoKey,
}

type Choose = dyn Fn(&Request) -> Fault + Send + Sync;

/// How the server was started.
pub struct Config {
    pub parser: &'static str,
    pub reasoning: Option<&'static str>,
    pub owner: &'static str,
    pub model: &'static str,
    /// Texts by turn.
    pub texts: HashMap<String, String>,
    pub suite: Suite,
    /// Folder that is served: tokens are counted and told with its template and tokenizer.
    pub folder: Option<PathBuf>,
    pub detokenize: bool,
    pub key: Option<&'static str>,
    pub fault: Box<Choose>,
}

impl Config {
    /// A vLLM with this parser and these texts.
    pub fn vllm(parser: &'static str, suite: Suite, texts: HashMap<String, String>) -> Self {
        Config {
            parser,
            reasoning: None,
            owner: "vllm",
            model: "tiny",
            texts,
            suite,
            folder: None,
            detokenize: true,
            key: None,
            fault: Box::new(|_| Fault::None),
        }
    }

    pub fn failing(self, fault: impl Fn(&Request) -> Fault + Send + Sync + 'static) -> Self {
        Config { fault: Box::new(fault), ..self }
    }
}

/// A running server; it ends with the test.
pub struct Server {
    pub url: String,
    state: Arc<State>,
}

struct State {
    config: Config,
    served: Option<(Renderer, Tokenizer)>,
    requests: Mutex<Vec<Request>>,
}

impl Server {
    pub fn start(config: Config) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let served =
            config.folder.as_ref().map(|dir| (Renderer::open(dir).unwrap(), Tokenizer::open(dir).unwrap()));
        let state = Arc::new(State { config, served, requests: Mutex::new(Vec::new()) });
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = shared.clone();
                std::thread::spawn(move || {
                    let _ = state.answer(stream);
                });
            }
        });
        Server { url, state }
    }

    pub fn requests(&self) -> Vec<Request> {
        self.state.requests.lock().unwrap().clone()
    }
}

/// An address where nobody listens.
pub fn dead_url() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}/v1", listener.local_addr().unwrap())
}

impl State {
    fn answer(&self, stream: TcpStream) -> std::io::Result<()> {
        let (path, authorization, body) = read(&stream)?;
        let id = self.turn_of(&body);
        let mut requests = self.requests.lock().unwrap();
        let same = |r: &&Request| r.path == path && r.id == id && r.body["stream"] == body["stream"];
        let before = requests.iter().filter(same).count();
        let request = Request { path, authorization, body, id, before };
        requests.push(request.clone());
        drop(requests);
        let reply = Reply(stream);
        let wanted = self.config.key.map(|key| format!("Bearer {key}"));
        if wanted.is_some() && request.authorization != wanted {
            let text = json!({"error": {"message": "Unauthorized", "code": 401}}).to_string();
            return reply.whole(401, "", &text);
        }
        match (self.config.fault)(&request) {
            Fault::Status(code, headers, body) => reply.whole(code, headers, body),
            Fault::Page => reply.whole(200, "", "<html><body>Welcome</body></html>"),
            Fault::EchoKey => {
                let said = request.authorization.clone().unwrap_or_default();
                let text = json!({"error": {"message": format!("wrong key: {said}")}}).to_string();
                reply.whole(500, "", &text)
            }
            Fault::Stall => {
                std::thread::sleep(Duration::from_secs(600));
                Ok(())
            }
            fault => self.serve(&request, &fault, reply),
        }
    }

    fn serve(&self, request: &Request, fault: &Fault, reply: Reply) -> std::io::Result<()> {
        let tail = request.path.rsplit_once("/v1").map_or(request.path.as_str(), |(_, tail)| tail);
        let model = request.body["model"].as_str();
        if model.is_some_and(|m| m != self.config.model) {
            let said = format!("The model `{}` does not exist.", model.unwrap());
            return reply.whole(404, "", &json!({"error": {"message": said, "code": 404}}).to_string());
        }
        match tail {
            "/models" => {
                let model =
                    json!({"id": self.config.model, "object": "model", "owned_by": self.config.owner});
                reply.whole(200, "", &json!({"object": "list", "data": [model]}).to_string())
            }
            "/detokenize" if self.config.detokenize => {
                let Some((_, tokenizer)) = &self.served else { return reply.whole(404, "", "{}") };
                let ids: Vec<u32> = serde_json::from_value(request.body["tokens"].clone()).unwrap();
                reply.whole(200, "", &json!({"prompt": tokenizer.decode(&ids).unwrap()}).to_string())
            }
            "/completions" if self.served.is_some() => {
                let text = self.text_of_prompt(request.body["prompt"].as_str().unwrap());
                reply.whole(
                    200,
                    "",
                    &json!({"choices": [{"text": text, "finish_reason": "stop"}]}).to_string(),
                )
            }
            "/chat/completions" if request.streamed() => self.chat_streamed(request, fault, reply),
            "/chat/completions" => {
                let text = self.chat_whole(request, fault).to_string();
                match fault {
                    Fault::Cut => reply.cut(&text),
                    _ => reply.whole(200, "", &text),
                }
            }
            _ => reply.whole(404, "", &json!({"detail": "Not Found"}).to_string()),
        }
    }

    /// The turn whose conversation a request holds.
    fn turn_of(&self, body: &Value) -> String {
        let Some(messages) = body["messages"].as_array() else { return String::new() };
        let of_case = |case: &&verify::suite::Case| {
            messages.starts_with(&case.messages) && body["tools"].as_array() == Some(&case.tools)
        };
        let Some(case) = self.config.suite.all().filter(of_case).max_by_key(|c| c.messages.len()) else {
            return "other".into();
        };
        let answers = messages[case.messages.len()..].iter().filter(|m| m["role"] == "assistant").count();
        if answers == 0 { case.id.clone() } else { format!("{} turn {}", case.id, answers + 1) }
    }

    fn text(&self, id: &str) -> String {
        self.config.texts.get(id).cloned().unwrap_or_else(|| "Hello.".into())
    }

    fn text_of_prompt(&self, prompt: &str) -> String {
        let (renderer, _) = self.served.as_ref().unwrap();
        let of_case = |c: &&verify::suite::Case| {
            renderer.render(&Conversation::new(&c.messages, &c.tools)).unwrap() == prompt
        };
        self.config.suite.all().find(of_case).map_or("another prompt".into(), |c| self.text(&c.id))
    }

    /// What the server's parsers make of the text.
    fn parsed(&self, request: &Request, fault: &Fault, streamed: bool) -> (Option<String>, Parsed) {
        let text = self.text(&request.id);
        let tools = request.body["tools"].as_array().cloned().unwrap_or_default();
        let kept = if request.body["tool_choice"] == "none" { Vec::new() } else { tools };
        let context = Context { tools: kept, ..Context::default() };
        let (reasoning, text) = match self.config.reasoning {
            None => (None, text),
            Some(name) => {
                let (reasoning, content) = find_reasoning(name).unwrap().split(&text, &context);
                (reasoning, content.unwrap_or_default())
            }
        };
        let parser = find(self.config.parser).unwrap();
        let whole = || parser.parse(&text, &context);
        let mut parsed =
            if streamed { parser.stream(&text, &context).unwrap_or_else(whole) } else { whole() };
        match fault {
            Fault::OtherCall => parsed.tool_calls.iter_mut().for_each(|c| c.arguments = r#"{"x": 1}"#.into()),
            Fault::CallsAsText => parsed = Parsed { content: Some(text), ..Parsed::default() },
            _ => {}
        }
        (reasoning, parsed)
    }

    fn usage(&self, request: &Request) -> Value {
        let messages = request.body["messages"].as_array().unwrap();
        let tools = request.body["tools"].as_array().cloned().unwrap_or_default();
        let prompt = match &self.served {
            None => 100,
            Some((renderer, tokenizer)) => {
                let prompt = renderer.render(&Conversation::new(messages, &tools)).unwrap();
                tokenizer.encode(&prompt).unwrap().len()
            }
        };
        let tokens = self.ids(request).map_or(20, |ids| ids.len());
        json!({"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens})
    }

    /// The tokens of the text and one that ends it.
    fn ids(&self, request: &Request) -> Option<Vec<u32>> {
        let (_, tokenizer) = self.served.as_ref()?;
        let mut ids = tokenizer.encode(&self.text(&request.id)).unwrap();
        ids.extend(tokenizer.encode("<|im_end|>").unwrap());
        Some(ids)
    }

    fn chat_whole(&self, request: &Request, fault: &Fault) -> Value {
        let (reasoning, parsed) = self.parsed(request, fault, false);
        let call = |(at, c): (usize, &verify::parsers::ToolCall)| {
            json!({"id": format!("call-{at}"), "type": "function",
                   "function": {"name": c.name, "arguments": c.arguments}})
        };
        let calls: Vec<Value> = parsed.tool_calls.iter().enumerate().map(call).collect();
        let reason = if calls.is_empty() { "stop" } else { "tool_calls" };
        let message = json!({"role": "assistant", "content": parsed.content, "reasoning": reasoning, "tool_calls": calls});
        let mut choice = json!({"index": 0, "message": message, "finish_reason": reason});
        if request.body["return_token_ids"] == true && self.config.owner == "vllm" {
            choice["token_ids"] = json!(self.ids(request));
        }
        json!({"object": "chat.completion", "model": self.config.model, "choices": [choice], "usage": self.usage(request)})
    }

    fn chat_streamed(&self, request: &Request, fault: &Fault, reply: Reply) -> std::io::Result<()> {
        let (reasoning, parsed) = self.parsed(request, fault, true);
        let mut deltas = vec![json!({"role": "assistant", "content": ""})];
        for (key, text) in [("reasoning", reasoning), ("content", parsed.content)] {
            deltas.extend(pieces(&text.unwrap_or_default()).map(|p| json!({key: p})));
        }
        for (at, call) in parsed.tool_calls.iter().enumerate() {
            let mut first = json!({"index": at, "id": format!("call-{at}"), "type": "function",
                                   "function": {"name": call.name, "arguments": ""}});
            if *fault == Fault::NoIndex {
                first.as_object_mut().unwrap().remove("index");
            }
            deltas.push(json!({"tool_calls": [first]}));
            let piece = |p: String| json!({"tool_calls": [{"index": at, "function": {"arguments": p}}]});
            deltas.extend(pieces(&call.arguments).map(piece));
        }
        let chunk = |delta: &Value, reason: Value| {
            let choices = json!([{"index": 0, "delta": delta, "finish_reason": reason}]);
            json!({"object": "chat.completion.chunk", "model": self.config.model, "choices": choices})
                .to_string()
        };
        let reason = if parsed.tool_calls.is_empty() { "stop" } else { "tool_calls" };
        let mut chunks: Vec<String> = deltas.iter().map(|d| chunk(d, Value::Null)).collect();
        chunks.push(chunk(&json!({}), reason.into()));
        chunks.push(json!({"choices": [], "usage": self.usage(request)}).to_string());
        chunks.push("[DONE]".into());
        match fault {
            Fault::MalformedChunk => chunks[1] = "{\"choices\": [{".into(),
            Fault::ErrorChunk => chunks[1] = json!({"error": {"message": "the engine died"}}).to_string(),
            Fault::Cut => chunks.truncate(2),
            _ => {}
        }
        let ends = if *fault == Fault::Cut { Ends::Cut } else { Ends::Well };
        reply.events(&chunks, ends)
    }
}

/// A text in pieces of seven letters, as tokens might cut it.
fn pieces(text: &str) -> impl Iterator<Item = String> {
    let letters: Vec<char> = text.chars().collect();
    letters.chunks(7).map(|c| c.iter().collect()).collect::<Vec<String>>().into_iter()
}

fn read(stream: &TcpStream) -> std::io::Result<(String, Option<String>, Value)> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_string();
    let (mut length, mut authorization) = (0, None);
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        match name.to_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap(),
            "authorization" => authorization = Some(value.trim().to_string()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok((path, authorization, serde_json::from_slice(&body).unwrap_or_default()))
}

/// How a stream of events ends.
#[derive(PartialEq)]
enum Ends {
    Well,
    Cut,
}

struct Reply(TcpStream);

impl Reply {
    fn whole(mut self, code: u16, headers: &str, body: &str) -> std::io::Result<()> {
        let length = body.len();
        write!(
            self.0,
            "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
        )
    }

    fn cut(mut self, body: &str) -> std::io::Result<()> {
        write!(
            self.0,
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{}",
            body.len(),
            &body[..20]
        )
    }

    fn events(mut self, chunks: &[String], ends: Ends) -> std::io::Result<()> {
        write!(
            self.0,
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        )?;
        for chunk in chunks {
            let event = format!("data: {chunk}\n\n");
            write!(self.0, "{:x}\r\n{event}\r\n", event.len())?;
            self.0.flush()?;
        }
        match ends {
            Ends::Well => write!(self.0, "0\r\n\r\n"),
            Ends::Cut => Ok(()),
        }
    }
}
