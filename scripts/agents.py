#!/usr/bin/env python3
"""Runs coding agents bare, under egressd run, under egressd serve and in a captured network namespace, and prints a table of what each shows its user.

    npm install --prefix DIR @anthropic-ai/claude-code @openai/codex @google/gemini-cli opencode-ai
    make build && sudo scripts/agents.py DIR [ROW…]      # a ROW is the begin of claude/run/allowed
    sudo AGENTS_CYCLES=70 AGENTS_PATIENCE=5000 scripts/agents.py DIR --session [AGENT…]
    sudo AGENTS_ASK=1 scripts/agents.py DIR --ask [AGENT…]

The agents ask a model that this script plays, with a certificate of an authority that it makes, in network namespaces of
its own: nothing leaves the machine. The model has the agent write a file with a command, then ends. A row says how the
agent ended, after how long, whether its command ran, when the words of a denial first stood in its output, and which.
With --session the agents work beside each other, each in a git worktree under egressd run --fs, which hides a DIR in /tmp: they edit, test, commit with
signatures of an ssh agent outside, merge, run a server and look at it with Chromium, in as many cycles of seven commands as
AGENTS_CYCLES says. A row says what is in the repository afterwards, in how many cycles the tests passed, Chromium saw the page, and the server answered after a pause.
With --ask a host is denied that an agent fetches over TLS, in plain HTTP and as a server of MCP, which is in its settings, too. The model
takes the address of egressd from what the agent has read, and has it ask there with curl, wait, and fetch again, while this script
answers as the operator. A row says which denials brought the address to the model, what the agent said of its server of MCP, and whether it went on.
Each agent runs as user 1000, with a home folder of its own.
"""
import http.server, json, os, re, select, shutil, socket, ssl, struct, subprocess, sys, tempfile, threading, time

HOSTS = """api.anthropic.com mcp-proxy.anthropic.com statsig.anthropic.com platform.claude.com claude.ai claude.com downloads.claude.ai
api.openai.com chatgpt.com auth.openai.com ab.chatgpt.com generativelanguage.googleapis.com cloudcode-pa.googleapis.com
oauth2.googleapis.com play.googleapis.com models.dev models.opencode.ai opencode.ai api.opencode.ai registry.npmjs.org
github.com api.github.com raw.githubusercontent.com http-intake.logs.us5.datadoghq.com example.com""".split()
WORLD, RESOLVER = "93.184.216.34", "9.9.9.53"
COMMAND = "echo ran > made-by-agent"
PATIENCE = int(os.environ.get("AGENTS_PATIENCE", "200"))
CYCLES = int(os.environ.get("AGENTS_CYCLES", "0"))
SERVER = """import http.server, sys
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = open("page.html", "rb").read()
        self.send_response(200); self.send_header("Content-Length", str(len(text))); self.send_header("Content-Type", "text/html"); self.end_headers(); self.wfile.write(text)
    def log_message(self, *_): pass
if sys.argv[1:]:
    http.server.ThreadingHTTPServer(("localhost", 8123), Page).serve_forever()
import subprocess
subprocess.Popen([sys.executable, "server.py", "serve"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
"""
BEGIN = "ssh-add -l; git add -A; git commit -qS -m 'a server'; python3 server.py; for i in $(seq 50); do curl -sf http://localhost:8123/ && break; sleep 0.1; done"
CYCLE = ["printf 'def f{0}():\\n    return {0}\\n' >>calc.py; sed -i '1i # edit {0}' calc.py; git diff --stat",
         "printf 'import unittest, calc\\nclass T(unittest.TestCase):\\n    def test(self): self.assertEqual(calc.f{0}(), {0})\\n' >test_{0}.py; python3 -m unittest -q 2>&1 | tail -3 | tee -a tested",
         "git add -A && git commit -qS -m 'step {0}' && git log -1 --format='%G? %s'",
         "echo '<script>document.write(\"step {0} online \" + navigator.onLine)</script>' >page.html; timeout 60 chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir=/tmp/c{0} --virtual-time-budget=2000 --dump-dom http://localhost:8123/ 2>/dev/null | grep -o 'step {0} online true' >>seen; rm -r /tmp/c{0}; tail -1 seen",
         "git switch -qc b{0}; echo {0} >n{0}; git add n{0}; git commit -qS -m 'branch {0}'; git switch -q -; git merge -q --no-ff -S -m 'merge {0}' b{0}; git stash -q; git stash pop -q; git add -A; git commit -qS -m 'page {0}'; git status -s",
         "curl -sS -m 20 -o /dev/null -w '%{{http_code}}\\n' https://example.com/; curl -sS -m 20 -o /dev/null -w '%{{http_code}}\\n' https://github.com/",
         "sleep 35; curl -sS http://localhost:8123/ | grep -o 'step {0} ' | tee -a served"]
END = "git gc -q; git fsck --no-dangling 2>&1 | tail -1; pkill -f 'server.py serv[e]'; echo over >over; git add -A; git commit -qS -m over"
STEPS = [BEGIN] + [c.format(i) for i in range(CYCLES) for c in CYCLE] + [END] if CYCLES else []
ASK = bool(os.environ.get("AGENTS_ASK"))
GOAL = "https://example.com/goal"
MCP = """{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"""
TRIES = [f"curl -sS -m 20 {GOAL}", "curl -sS -m 20 http://example.com/goal",
         f"curl -sS -m 20 -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' -d '{MCP}' https://example.com/mcp"]
DENIED = re.compile(r"^(?!egressd: )[^\n]*(?:default-deny|Blocked by egress|egress_denied)[^\n]*", re.M)  # in the agent's own words


class Model(http.server.BaseHTTPRequestHandler):
    """Every API in one: a tool call first, and words once the result of a tool is there."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def log(self, what):
        with open(os.environ["AGENTS_LOG"], "a") as f:
            f.write(f"{time.time():.1f} {what}\n")

    def do_GET(self):
        self.log(f"GET {self.headers.get('Host')}{self.path}")
        if self.path == "/goal":
            return self.answer({"goal": "reached"})
        if self.path.startswith("/api.json") or "models" in (self.headers.get("Host") or ""):
            return self.answer({"anthropic": {"id": "anthropic", "name": "Anthropic", "env": ["ANTHROPIC_API_KEY"], "npm": "@ai-sdk/anthropic", "models": {
                "claude-sonnet-4-5": {"id": "claude-sonnet-4-5", "name": "Sonnet", "attachment": False, "reasoning": False, "temperature": True, "tool_call": True,
                                      "release_date": "2025-09-29", "last_updated": "2025-09-29", "modalities": {"input": ["text"], "output": ["text"]}, "open_weights": False,
                                      "cost": {"input": 1, "output": 1}, "limit": {"context": 200000, "output": 8000}}}}})
        websocket = self.headers.get("Upgrade", "").lower() == "websocket"  # Codex asks for one first, and does without at 426
        self.answer({"error": {"type": "not_found_error", "message": "not here"}}, 426 if websocket else 404)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) if "chunked" not in (self.headers.get("Transfer-Encoding") or "") else self.chunks()
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip
            body = gzip.decompress(body)
        try:
            asked = json.loads(body or b"{}")
        except ValueError:
            asked = {}
        self.log(f"POST {self.headers.get('Host')}{self.path} {len(body)}")
        if self.path.startswith("/v1/messages/count_tokens"):
            return self.answer({"input_tokens": 10})
        if self.path.startswith("/v1/messages"):
            return self.anthropic(asked)
        if self.path.endswith("/responses"):
            return self.openai(asked)
        if "enerateContent" in self.path:
            return self.google(asked)
        self.answer({}, 200)

    def chunks(self):
        body = b""
        while n := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(n)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def answer(self, what, status=200):
        text = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def stream(self, events, named=True):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for e in events:
            self.wfile.write(((f"event: {e['type']}\n" if named else "") + "data: " + json.dumps(e) + "\n\n").encode())
            self.wfile.flush()
        self.close_connection = True

    def turn(self, asked):
        """How many results of tools a conversation has."""
        parts = [c for m in asked.get("messages", []) if isinstance(m.get("content"), list) for c in m["content"]]
        parts += [i for i in asked.get("input", []) if isinstance(i, dict)] + [p for c in asked.get("contents", []) for p in c.get("parts", [])]
        results = [json.dumps(p) for p in parts if p.get("type") == "tool_result" or p.get("type", "").endswith("_call_output") or "functionResponse" in p]
        self.running = results and re.search(r"(?:session ID |session_id\W+)(\d+)", results[-1])  # Codex waits 30 s for a command
        results = [r for r in results if not re.search(r"session ID \d|session_id\W+\d", r)]
        self.turns = len(results)
        if ASK:
            return self.asking(results)
        return self.turns >= (len(STEPS) or 1)

    def asking(self, results):
        """The next command of --ask. All that it knows of egressd stands in the results of the commands before."""
        n = len(results)
        if n and n <= len(TRIES):
            self.log(f"READ {n - 1} {'http://egressd.internal/' in results[-1]} {results[-1][:1500]}")
        at, asked = re.search(r"http://egressd\.internal/", "".join(results)), None
        if n > len(TRIES):
            asked = re.search(r'"id\W+([0-9A-Z]{10})\b', results[len(TRIES)])
            self.log(f"READ {n - 1} {bool(asked)} {results[-1][:1500]}")
        self.command = None
        if n < len(TRIES):
            self.command = TRIES[n]
        elif at and n == len(TRIES):
            self.command = f"curl -sS -m 20 -H 'Accept: application/json' {at.group(0)}requests -d '{{\"host\":\"example.com:443\",\"reason\":\"the goal is there\"}}'"
        elif asked and n == len(TRIES) + 1:
            self.command = f"curl -sS -m 70 -H 'Accept: application/json' '{at.group(0)}requests/{asked.group(1)}?wait=60'"
        elif asked and n == len(TRIES) + 2:
            self.command = f"curl -sS -m 20 {GOAL}"
        return self.command is None

    def step(self):
        if ASK:
            return self.command
        return f"bash ../steps/{self.turns}.sh" if STEPS else COMMAND  # in a file, since agents refuse what looks dangerous

    def tool(self, names, done):
        """The name of the tool that runs commands, or None if it is to say words."""
        for name in names:
            if not done and re.fullmatch(r"(?i)bash|shell|shell_command|exec_command|run_shell_command|local_shell", name or ""):
                return name

    def arguments(self, tool):
        if tool == "exec_command":
            return {"cmd": self.step(), "yield_time_ms": 90000}
        if tool == "shell":
            return {"command": ["bash", "-c", self.step()]}
        return {"command": self.step(), "description": f"step {self.turns}"}

    def anthropic(self, asked):
        done = self.turn(asked)
        tool = self.tool([t.get("name") for t in asked.get("tools") or []], done)
        block = {"type": "tool_use", "id": f"toolu_{self.turns}", "name": tool, "input": {}} if tool else {"type": "text", "text": ""}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(self.arguments(tool))} if tool else {"type": "text_delta", "text": "All done."}
        whole = {"id": f"msg_{self.turns}", "type": "message", "role": "assistant", "model": asked.get("model", "m"), "content": [], "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
        if not asked.get("stream"):
            return self.answer({**whole, "content": [{"type": "text", "text": "All done."}], "stop_reason": "end_turn"})
        self.stream([{"type": "message_start", "message": whole}, {"type": "content_block_start", "index": 0, "content_block": block},
                     {"type": "content_block_delta", "index": 0, "delta": delta}, {"type": "content_block_stop", "index": 0},
                     {"type": "message_delta", "delta": {"stop_reason": "tool_use" if tool else "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 5}},
                     {"type": "message_stop"}])

    def openai(self, asked):
        done = self.turn(asked)
        call = {"id": f"f{self.turns}", "call_id": f"c{self.turns}", "status": "completed"}
        names = [t.get("name") or t.get("type") for t in asked.get("tools") or []]
        tool, call_of, arguments = self.tool(names, done), "exec_command", None
        if self.running:
            call_of, arguments = "write_stdin", {"session_id": int(self.running.group(1)), "chars": "", "yield_time_ms": 30000}
            call["id"], call["call_id"] = f"f{self.turns}-on", f"c{self.turns}-on-{len(asked['input'])}"
        item = {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "All done.", "annotations": []}]}
        if not done and any(i.get("type") == "additional_tools" for i in asked.get("input", []) if isinstance(i, dict)):  # its tools are JavaScript
            tool = "exec"
            item = {"type": "custom_tool_call", **call, "name": tool, "namespace": "functions",
                    "input": f"text(JSON.stringify(await tools.{call_of}({json.dumps(arguments or self.arguments(call_of))})))"}
        elif tool:
            item = {"type": "function_call", **call, "name": call_of if arguments else tool, "arguments": json.dumps(arguments or self.arguments(tool))}
        usage = {"input_tokens": 1, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 1, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 2}
        self.stream([{"type": "response.created", "response": {"id": "r1"}}, {"type": "response.output_item.added", "output_index": 0, "item": item},
                     {"type": "response.output_item.done", "output_index": 0, "item": item}, {"type": "response.completed", "response": {"id": "r1", "output": [item], "usage": usage}}])

    def google(self, asked):
        done = self.turn(asked)
        tools = [f.get("name") for t in asked.get("tools") or [] for f in t.get("functionDeclarations", [])]
        tool = self.tool(tools, done)
        part = {"functionCall": {"name": tool, "args": self.arguments(tool)}} if tool else {"text": "All done." if tools else '{"reasoning": "simple", "model_choice": "flash", "complexity_reasoning": "simple", "complexity_score": 1}'}
        whole = {"candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}], "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}}
        if "stream" not in self.path:
            return self.answer(whole)
        self.stream([whole], named=False)


def play(work):
    """The world: a name server and a web server for all names, in their own network namespace."""
    def names():
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.bind((RESOLVER, 53))
        while True:
            q, whence = s.recvfrom(4096)
            end = 12
            while q[end]:
                end += 1 + q[end]
            a = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + socket.inet_aton(WORLD) if q[end + 1:end + 3] == b"\0\1" else b""
            s.sendto(q[:2] + b"\x81\x80\0\1" + struct.pack(">H", 1 if a else 0) + b"\0\0\0\0" + q[12:end + 5] + a, whence)

    threading.Thread(target=names, daemon=True).start()
    server = http.server.ThreadingHTTPServer((WORLD, 443), Model)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{work}/leaf.pem", f"{work}/leaf.key")
    context.set_alpn_protocols(["http/1.1"])
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.serve_forever()


def sh(text, **env):
    subprocess.run(["sh", "-ec", text], check=True, env={**os.environ, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def prepare(work):
    """Namespaces, certificates, and a resolver for everything that this process starts."""
    sans = ",".join("DNS:" + h for h in HOSTS)
    with open(f"{work}/ext", "w") as f:
        f.write(f"subjectAltName={sans}\nextendedKeyUsage=serverAuth\n")
    sh(f"""cd {work}
openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj '/CN=stand-in world' -keyout ca.key -out ca.pem
openssl req -newkey rsa:2048 -nodes -subj /CN=world -keyout leaf.key -out leaf.csr
openssl x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile ext -out leaf.pem
cat /etc/ssl/certs/ca-certificates.crt ca.pem > roots.pem; echo nameserver {RESOLVER} > resolv.conf; chmod 755 . ; chmod 644 roots.pem resolv.conf
mount --make-rprivate /; mount --bind roots.pem "$(readlink -f /etc/ssl/certs/ca-certificates.crt)"; mount --bind resolv.conf "$(readlink -f /etc/resolv.conf)"
mount -t tmpfs none /run; mkdir -m 700 /run/user; ip link set lo up""")
    far = subprocess.Popen(["unshare", "--net", "sh", "-c", f"while ! [ -e {work}/go ]; do sleep 0.1; done; exec \"$@\"", "sh", sys.executable, __file__, "--play", work])
    time.sleep(0.5)
    sh(f"""ip link add out type veth peer name far netns {far.pid}
ip addr add 10.98.0.1/30 dev out; ip link set out up; ip route add default via 10.98.0.2
nsenter -t {far.pid} --net sh -c 'ip link set lo up; ip addr add 10.98.0.2/30 dev far; ip addr add {WORLD}/32 dev lo; ip addr add {RESOLVER}/32 dev lo; ip link set far up'
touch {work}/go""")
    time.sleep(1)


FLAGS = os.environ.get("AGENTS_FLAGS", "--nested").split()  # of egressd run, for agents with their own sandbox on
PROMPT = "Write the file made-by-agent with a shell command."
AGENTS = {
    "claude": dict(presets=["claude-code"], command=["claude", "-p", PROMPT, "--dangerously-skip-permissions"], env={"ANTHROPIC_API_KEY": "sk-ant-stand-in", "DISABLE_AUTOUPDATER": "1"}),
    "codex": dict(presets=["codex"], command=["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", PROMPT], env={"CODEX_API_KEY": "sk-stand-in"}),
    "gemini": dict(presets=["gemini-cli"], command=["gemini", "-p", PROMPT, "--yolo", "--skip-trust"], env={"GEMINI_API_KEY": "stand-in"}),
    "opencode": dict(presets=["opencode", "anthropic"], command=["opencode", "run", "-m", "anthropic/claude-sonnet-4-5", PROMPT], env={"ANTHROPIC_API_KEY": "sk-ant-stand-in"}),
}
OWN = {
    "claude": ["claude", "-p", PROMPT, "--allowedTools", "Bash", "--settings", json.dumps({"sandbox": {"enabled": True, "autoAllowBashIfSandboxed": True, "allowUnsandboxedCommands": False, "failIfUnavailable": True}})],
    "codex": ["codex", "exec", "--skip-git-repo-check", "--sandbox", "workspace-write", PROMPT],
}


class Row:
    def __init__(self, agent, mode, denied, bin, work):
        self.agent, self.mode, self.denied, self.work = agent, mode, denied, work
        self.home = tempfile.mkdtemp(prefix=f"{agent}-{mode}-", dir=f"{work}/homes")
        self.tree = f"{self.home}/tree"
        a = AGENTS[agent]
        self.command = OWN[agent] if mode == "own" else a["command"]
        presets = [] if denied else a["presets"]
        self.socket = f"{self.home}/state/enter.sock"
        os.makedirs(f"{self.home}/.config/egressd")
        os.makedirs(self.tree)
        with open(f"{self.home}/.config/egressd/egressd.yaml", "w") as f:
            f.write(f"version: 1\nlisten: {{proxy: [\"127.0.0.1:3128\"], enter: [\"unix:{self.socket}\"]}}\npresets: {json.dumps(presets)}\nallow: []\n")
        self.env = {**a["env"], "HOME": self.home, "PATH": f"{bin}:{work}/bin:/usr/local/bin:/usr/bin:/bin", "TERM": "dumb", "USER": "agent", "LANG": "C.UTF-8",
                    "AGENTS_LOG": os.environ["AGENTS_LOG"]}
        if mode in ("bare", "serve", "container"):  # run has programs trust the system's authorities and egressd's
            self.env.update(NODE_EXTRA_CA_CERTS=f"{work}/roots.pem", SSL_CERT_FILE=f"{work}/roots.pem")
        subprocess.run(["chown", "-R", "1000:1000", self.home], check=True)

    def start(self, command, **more):
        as_user = ["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups"]
        return subprocess.Popen(as_user + command, cwd=self.tree, env=self.env, stdin=subprocess.DEVNULL, start_new_session=True, **more)

    def run(self):
        serve, command = None, list(self.command)
        if self.mode in ("run", "own"):
            command = ["egressd", "run"] + (FLAGS if self.mode == "own" else []) + ["--"] + command
        if self.mode == "container":  # captured, as in a container that entered: a network namespace with nothing in it
            command = ["unshare", "--map-current-user", "--keep-caps", "--net", "egressd", "enter", "--socket", self.socket, "--"] + command
        if self.mode in ("serve", "container"):
            serve = self.start(["egressd", "serve"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(2)
        if self.mode == "serve":
            self.start(["sh", "-c", f"egressd init {self.agent} --yes >init.log 2>&1"]).wait() if self.agent in ("claude", "codex") else None
            command = ["sh", "-c", 'eval "$(egressd env 2>/dev/null)"; exec "$@"', "sh"] + command
            if self.agent in OWN:
                command[4:] = OWN[self.agent] if self.agent == "codex" else ["claude", "-p", PROMPT, "--allowedTools", "Bash"]
        began = time.time()
        p = self.start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        text, first = b"", None
        while True:
            ready, _, _ = select.select([p.stdout], [], [], max(0, began + PATIENCE - time.time()))
            more = os.read(p.stdout.fileno(), 65536) if ready else b""
            if not more:
                break
            text += more
            if first is None and DENIED.search(text.decode(errors="replace")):
                first = time.time() - began
        ended = "timeout"
        if not ready:
            os.killpg(p.pid, 9)
        else:
            ended = str(p.wait())
        took = time.time() - began
        if serve:
            serve.terminate()
            serve.wait()
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text.decode(errors="replace"))
        with open(f"{self.home}/output", "w") as f:
            f.write(text)
        said = DENIED.search(text)
        return dict(agent=self.agent, mode=self.mode, api="denied" if self.denied else "allowed", exit=ended, seconds=round(took, 1),
                    command_ran=os.path.exists(f"{self.tree}/made-by-agent"), denial_after=first and round(first, 1), says=said and said.group(0).strip()[:200], output=f"{self.home}/output")


class Session(Row):
    """A row of --session."""

    def __init__(self, agent, bin, work):
        super().__init__(agent, "session", False, bin, work)
        os.makedirs(f"{self.home}/steps")
        for i, step in enumerate(STEPS):
            with open(f"{self.home}/steps/{i}.sh", "w") as f:
                f.write(step + "\n")
        os.makedirs(f"{self.home}/repo")
        with open(f"{self.home}/repo/server.py", "w") as f:
            f.write(SERVER)
        subprocess.run(["chown", "-R", "1000:1000", self.home], check=True)
        self.outside(f"""cd "$HOME/repo"; rmdir ../tree; ssh-keygen -qt ed25519 -N '' -f ../key -C agent-key; echo "agent@example.com $(cat ../key.pub)" >../signers
git init -q -b main; git config user.name Agent; git config user.email agent@example.com; git config gpg.format ssh; git config user.signingkey "key::$(cat ../key.pub)"
git config gpg.ssh.allowedSignersFile $HOME/signers; echo __pycache__ >.gitignore; echo page >page.html; git add -A; git commit -qm one; git worktree add -q ../tree -b work""")
        self.command = ["ssh-agent", "sh", "-c", 'ssh-add -q "$HOME/key"; rm "$HOME/key"; exec "$@"', "sh", "egressd", "run", "--fs", "--allow", "example.com", "--ssh-key", "agent-key", "--"] + AGENTS[agent]["command"]

    def outside(self, text):
        p = self.start(["bash", "-ec", text], stdout=subprocess.PIPE, text=True)
        return p.communicate()[0].splitlines()

    def run(self):
        ran = super().run()
        commits = self.outside("git log --format=%G?")
        return dict(agent=self.agent, exit=ran["exit"], seconds=ran["seconds"], turns=len(STEPS), commits=len(commits), signed=commits.count("G"), branches=len(self.outside("git branch")),
                    tested=self.outside("cat tested").count("OK"), seen=len(self.outside("cat seen")), served=len(self.outside("cat served")),
                    changes=len(self.outside("git status -s")), damage=self.outside("git fsck --no-dangling"), over=os.path.exists(f"{self.tree}/over"), output=ran["output"])


class Asking(Row):
    """A row of --ask: one agent, one way to egressd."""

    def __init__(self, agent, mode, bin, work):
        super().__init__(agent, mode, False, bin, work)
        server = "https://example.com/mcp"
        if agent == "claude":
            with open(f"{self.home}/mcp.json", "w") as f:
                json.dump({"mcpServers": {"far": {"type": "http", "url": server}}}, f)
            self.command = self.command + ["--mcp-config", f"{self.home}/mcp.json", "--output-format", "stream-json", "--verbose"]
        elif agent == "codex":
            self.command = self.command[:2] + ["-c", f'mcp_servers.far.url="{server}"'] + self.command[2:]
        elif agent == "gemini":
            os.makedirs(f"{self.home}/.gemini")
            with open(f"{self.home}/.gemini/settings.json", "w") as f:
                json.dump({"mcpServers": {"far": {"httpUrl": server}}}, f)
        else:
            self.command = self.command + ["--print-logs"]
            with open(f"{self.tree}/opencode.json", "w") as f:
                json.dump({"mcp": {"far": {"type": "remote", "url": server, "enabled": True}}}, f)
        subprocess.run(["chown", "-R", "1000:1000", self.home], check=True)

    def operator(self, over):
        """Answers each question as the operator."""
        while not over.wait(0.3):
            p = self.start(["egressd", "answer", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            for line in p.communicate()[0].splitlines():
                q = json.loads(line)
                if q.get("state") == "pending":
                    self.start(["egressd", "answer", q["id"], "yes"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait()

    def run(self):
        open(os.environ["AGENTS_LOG"], "w").close()
        over = threading.Event()
        serve = self.start(["egressd", "serve"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) if self.mode == "run" else None
        time.sleep(2 if serve else 0)
        operator = threading.Thread(target=self.operator, args=(over,))
        operator.start()
        ran = super().run()
        over.set()
        operator.join()
        if serve:
            serve.terminate()
            serve.wait()
        with open(os.environ["AGENTS_LOG"]) as f:
            log = f.read()
        read = {m[0]: m[1] == "True" for m in re.findall(r"READ (\d+) (True|False)", log)}
        with open(ran["output"]) as f:
            said = [line.strip()[:200] for line in f if re.search(r"(?i)\bmcp\b.*(fail|error|denied|refus)|far\W.*(fail|error|denied|refus)", line)]
        with open(ran["output"] + ".log", "w") as f:
            f.write(log)
        return dict(agent=self.agent, mode=self.mode, exit=ran["exit"], seconds=ran["seconds"], address={name: read.get(str(i)) for i, name in enumerate(["tls", "plain", "mcp"])},
                    asked=read.get(str(len(TRIES)), False), approved='approved' in log, went_on=log.count("GET example.com/goal") > 0, mcp_client=said[:2], output=ran["output"])


def main(folder, wanted):
    work = tempfile.mkdtemp(prefix="agents-", dir="/srv")  # neither below /tmp, where Codex makes no helpers, nor hidden by --fs
    os.environ["AGENTS_LOG"] = f"{work}/asked"
    open(f"{work}/asked", "w").close()
    os.chmod(f"{work}/asked", 0o666)
    os.makedirs(f"{work}/homes", mode=0o755)
    os.makedirs(f"{work}/bin")
    shutil.copy(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../build/egressd"), f"{work}/bin/egressd")
    prepare(work)
    print("results below", work, file=sys.stderr)
    bin = os.path.join(os.path.abspath(folder), "node_modules/.bin")
    if wanted[:1] == ["--session"]:
        sessions = [threading.Thread(target=lambda agent=agent: print(json.dumps(Session(agent, bin, work).run()), flush=True)) for agent in wanted[1:] or AGENTS]
        for s in sessions:
            s.start()
        for s in sessions:
            s.join()
        return
    if wanted[:1] == ["--ask"]:
        for agent in wanted[1:] or AGENTS:
            for mode in ["run", "serve", "container"]:
                print(json.dumps(Asking(agent, mode, bin, work).run()), flush=True)
        return
    for agent in AGENTS:
        for mode in ["bare", "run", "own", "serve", "container"]:
            if mode == "own" and agent not in OWN:
                continue
            for denied in [False, True]:
                name = f"{agent}/{mode}/{'denied' if denied else 'allowed'}"
                if mode == "bare" and denied or wanted and not any(name.startswith(w) for w in wanted):
                    continue
                print(json.dumps(Row(agent, mode, denied, bin, work).run()), flush=True)


if sys.argv[1:2] == ["--play"]:
    play(sys.argv[2])
elif os.environ.get("AGENTS_INSIDE"):
    main(sys.argv[1], sys.argv[2:])
else:
    os.environ["AGENTS_INSIDE"] = "1"
    os.execvp("unshare", ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable] + sys.argv)
