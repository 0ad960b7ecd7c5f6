package rego_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

// fails evaluates and wants an error, and that a policy takes it for a denial even
// where everything else is allowed.
func fails(t *testing.T, e *rego.Evaluator, r policy.Request) error {
	t.Helper()
	d, err := e.Evaluate(context.Background(), &r)
	if err == nil || d.Verdict != policy.Deny {
		t.Fatalf("%+v, %v; want an error", d, err)
	}
	everything := load(t, "package egress\nallow contains {\"rule\": \"everything\"}")
	if d := policy.New(everything, e).Decide(context.Background(), &r); d.Verdict != policy.Deny || d.Class != policy.PolicyError {
		t.Fatalf("the policy says %v (%s)", d.Verdict, d.Class)
	}
	return err
}

func TestWhatFailsDenies(t *testing.T) {
	for _, row := range []struct{ name, text, want string }{
		{"a conflict", `x := 1 if input.destination.port == 443
			x := 2 if input.destination.host == "a.test"
			allow contains {"rule": "r"} if x == 1`, "conflict"},
		{"a division by zero", `allow contains {"rule": "r"} if 1 / (input.destination.port - 443) > 0`, "divide by zero"},
		{"a division by zero under not", `allow contains {"rule": "r"} if not 1 / (input.destination.port - 443) > 0`, "divide by zero"},
		{"an address that is a name, under not", `allow contains {"rule": "r"} if not net.contains("10.0.0.0/8", input.destination.host)`, "not an address"},
		{"a class of a name, under not", `allow contains {"rule": "r"} if not net.class(input.destination.host) == "private"`, "not an address"},
		{"a built-in of OPA that is given a name, under not", `allow contains {"rule": "r"} if not net.cidr_contains("10.0.0.0/8", input.destination.host)`, ""},
		{"a pattern that is made at run time", `allow contains {"rule": "r"} if host.matches("a.test", concat("", ["exa*", input.destination.host]))`, "not a pattern"},
		{"a list with something else in it", `allow contains {"rule": "r"} if not host.any("a.test", [1, 2, 3, 4, 5, 6])`, "wants text"},
		{"text for a list of prefixes", `allow contains {"rule": "a"}
			deny contains {"rule": "d"} if net.any(data.text, ["10.0.0.1"])`, "set or an array"},
		{"text for a list of paths", `allow contains {"rule": "a"}
			deny contains {"rule": "d"} if path.any("/x", data.text)`, "set or an array"},
		{"text for a list of days", `allow contains {"rule": "a"}
			deny contains {"rule": "d"} if time.on(input.time, "UTC", data.text)`, ""},
		{"a member that is text", `allow contains "r"`, "write an object"},
		{"a member that is true", `allow contains true`, "write an object"},
		{"a member without a rule", `allow contains {"reason": "x"}`, "no rule"},
		{"an empty rule", `allow contains {"rule": ""}`, "rule"},
		{"a rule that is a number", `allow contains {"rule": 1}`, "rule"},
		{"a rule with a line break", `allow contains {"rule": "a\nb"}`, "printable"},
		{"a rule that is long", `allow contains {"rule": "` + strings.Repeat("a", 65) + `"}`, "at most 64"},
		{"a reason that is a list", `allow contains {"rule": "r", "reason": ["x"]}`, "sentence"},
		{"an option that does not exist", `allow contains {"rule": "r", "tsl": "any"}`, "none of"},
		{"an option with another word", `allow contains {"rule": "r", "ech": true}`, "allow"},
		{"a limit of nothing", `allow contains {"rule": "r", "max_bytes_up": 0}`, "at least 1"},
		{"a limit below nothing", `allow contains {"rule": "r", "max_bytes_up": -1}`, "at least 1"},
		{"a limit with a fraction", `allow contains {"rule": "r", "max_bytes_up": 1.5}`, "whole number"},
		{"a limit that is text", `allow contains {"rule": "r", "max_bytes_up": "10MB"}`, "whole number"},
		{"a mark that is text", `allow contains {"rule": "r", "log": "yes"}`, "true or false"},
		{"two credentials", `allow contains {"rule": "a", "inject": "x"}
			allow contains {"rule": "b", "inject": "y"}`, "both x and y"},
		{"a deny in a wrong shape", `allow contains {"rule": "a"}
			deny contains "no"`, "write an object"},
		{"more than may be made at once", `allow contains {"rule": "r"} if { s := concat("", [sprintf("%%0%dd", [9999999])]); count(sprintf(s, [1])) > 0 }`, "would make more"},
	} {
		t.Run(row.name, func(t *testing.T) {
			e := loadAsIs(t, "package egress\n"+row.text, rego.Source{Name: "text.json", Text: []byte(`{"text": "10.0.0.0/8"}`)})
			if err := fails(t, e, to(t, "a.test:443")); !strings.Contains(err.Error(), row.want) {
				t.Errorf("said %q, want %q", err, row.want)
			}
			fails(t, e, sends(t, "a.test:443", "GET", "/"))
		})
	}
}

// TestBombs evaluates what would run or grow without end. The bound on time is far
// above the deadline, so that a busy machine does not matter, and far below what
// each would take.
func TestBombs(t *testing.T) {
	for _, row := range []struct{ name, text string }{
		{"a range", `allow contains {"rule": "r"} if count(numbers.range(1, 1000000000)) > 0`},
		{"ranges inside each other", `allow contains {"rule": "r"} if count([x | some a in numbers.range(1, 1000); some b in numbers.range(1, 1000); some c in numbers.range(1, 1000); x := (a * b) * c]) > 0`},
		{"walk", `big := [[[[[f | some f in numbers.range(1, 40)] | some e in numbers.range(1, 40)] | some d in numbers.range(1, 40)] | some c in numbers.range(1, 40)] | some b in numbers.range(1, 40)]
			allow contains {"rule": "r"} if count([p | walk(big, [p, _])]) > 0`},
		{"replacing", `a := concat("", ["x" | some i in numbers.range(1, 3000)])
			b := replace(a, "x", a)
			allow contains {"rule": "r"} if count(replace(b, "x", b)) > 0`},
		{"replacing by expression", `a := concat("", ["x" | some i in numbers.range(1, 3000)])
			allow contains {"rule": "r"} if count(regex.replace(a, "(x*)", "$1$1$1$1$1$1$1$1$1$1")) > 100000000
			allow contains {"rule": "s"} if count(regex.replace(a, "x", regex.replace(a, "x", a))) > 0`},
		{"printing a value that holds itself many times", `a := [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
			b := [a, a, a, a, a, a, a, a, a, a]
			c := [b, b, b, b, b, b, b, b, b, b]
			d := [c, c, c, c, c, c, c, c, c, c]
			e := [d, d, d, d, d, d, d, d, d, d]
			f := [e, e, e, e, e, e, e, e, e, e]
			g := [f, f, f, f, f, f, f, f, f, f]
			allow contains {"rule": "r"} if count(json.marshal(g)) > 0
			allow contains {"rule": "s"} if count(sprintf("%v", [g])) > 0`},
		{"prefixes", `allow contains {"rule": "r"} if count(net.cidr_expand("10.0.0.0/8")) > 0`},
		{"only for some requests", `allow contains {"rule": "r"} if { input.http.method == "GET"; count(numbers.range(1, 1000000000)) > 0 }`},
	} {
		t.Run(row.name, func(t *testing.T) {
			e, err := rego.LoadAsIs([]rego.Source{{Name: "bomb.rego", Text: []byte("package egress\n" + row.text)}}, rego.Options{}) // the deadline that policies have
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			fails(t, e, sends(t, "a.test:443", "GET", "/"))
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

func TestDeadlines(t *testing.T) {
	e := load(t, "package egress\nallow contains {\"rule\": \"r\"}")
	r := to(t, "a.test:443")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if d, err := e.Evaluate(ctx, &r); err == nil || d.Verdict != policy.Deny {
		t.Errorf("a cancelled context: %+v, %v", d, err)
	}
	slow, err := rego.Load([]rego.Source{{Name: "slow.rego", Text: []byte("package egress\nallow contains {\"rule\": \"r\"} if count(numbers.range(1, 1000000000)) > 0")}}, rego.Options{Deadline: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if d, err := slow.Evaluate(ctx, &r); err == nil || d.Verdict != policy.Deny {
		t.Errorf("the caller's deadline: %+v, %v", d, err)
	}
}

func TestReasonsArePrintable(t *testing.T) {
	e := load(t, "package egress\ndeny contains {\"rule\": \"r\", \"reason\": sprintf(\"not %s \\\"here\\\"\", [input.http.query])}")
	r := sends(t, "a.test:443", "GET", "/")
	r.HTTP.Query = "a\nb\x1b[31m\u00e4" + strings.Repeat("x", 1000)
	d := evaluate(t, e, r)
	if d.Verdict != policy.Deny || len(d.Reason) > 256 || !strings.HasPrefix(d.Reason, `not a\nb\x1b[31m\u00e4xxx`) {
		t.Errorf("%+v", d)
	}
	e = load(t, "package egress\ndeny contains {\"rule\": \"r\", \"reason\": \"say \\\"no\\\"\"}")
	if d := evaluate(t, e, r); d.Reason != `say "no"` {
		t.Errorf("%q", d.Reason)
	}
}

func TestCredentialsAreNotSeen(t *testing.T) {
	e := load(t, "package egress\ndeny contains {\"rule\": \"r\", \"reason\": concat(\",\", sort(object.keys(input.http.headers)))}")
	r := sends(t, "a.test:443", "GET", "/")
	r.HTTP.Header = map[string][]string{"Authorization": {"x"}, "Cookie": {"x"}, "Proxy-Authorization": {"x"}, "Accept": {"y"}, "X-Egress-Identity": {"admin"}}
	if d := evaluate(t, e, r); d.Reason != "accept,x-egress-identity" {
		t.Errorf("the policy sees %q", d.Reason)
	}
}

// TestOneCallMakesOnlySoMuch has no deadline to help: each call is refused before
// it makes anything.
func TestOneCallMakesOnlySoMuch(t *testing.T) {
	many := "a := concat(\"\", [\"x\" | some i in numbers.range(1, 3000)])\n"
	nested := "v0 := [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
	for i := range 5 {
		nested += strings.NewReplacer("N", string(rune('1'+i)), "V", "v"+string(rune('0'+i))).Replace("vN := [V, V, V, V, V, V, V, V, V, V]\n")
	}
	members := "b := replace(sprintf(\"%300000d\", [1]), \" \", \"1,\")\n"
	for _, row := range []struct{ name, rules, call string }{
		{"replace", many, `replace(a, "x", a)`},
		{"regex.replace", many, `regex.replace(a, "x", a)`},
		{"sprintf", "", `sprintf("%9999999d", [1])`},
		{"sprintf", "", `sprintf("%*d", [9999999, 1])`},
		{"sprintf", nested, `sprintf("%v", [v5])`},
		{"json.marshal", nested, `json.marshal(v5)`},
		{"concat", many, `concat(a, numbers_as_text)`},
		{"internal.template_string", many, "$\"" + strings.Repeat("{a}", 1500) + "\""},
		{"json.unmarshal", members, `json.unmarshal(concat("", ["[", b, "1]"]))`},
		{"replace", many + "f(a, b, c) := concat(a, [b, c])\n", `f(a, "x", a) with f as replace`},
		{"sprintf", "f(a, b) := 1 if a != b\n", `f("%9999999d", [1]) with f as sprintf`},
		{"hex.encode", members, `hex.encode(sprintf("%1500000d", [1]))`},
		{"array.concat", "", `array.concat(numbers.range(1, 150000), numbers.range(1, 150000))`},
		{"split", members, `split(b, ",")`},
		{"indexof_n", members, `indexof_n(b, ",")`},
		{"regex.split", members, `regex.split(",", b)`},
		{"regex.find_n", members, `regex.find_n(",", b, -1)`},
		{"regex.find_all_string_submatch_n", members, `regex.find_all_string_submatch_n("(,)", b, -1)`},
		{"object.subset", "", `object.subset(numbers.range(1, 600), numbers.range(1, 600))`},
		{"object.union_n", "o := {x: 1 | some x in numbers.range(1, 1000)}\n", `object.union_n([o | some i in numbers.range(1, 300)])`},
		{"yaml.marshal", nested, `yaml.marshal(v5)`},
		{"yaml.unmarshal", members, `yaml.unmarshal(concat("", ["[", b, "1]"]))`},
		{"json.marshal_with_options", nested, `json.marshal_with_options(v5, {"pretty": true})`},
		{"strings.split_n", members, `strings.split_n(b, ",", -1)`},
		{"array.flatten", "", `array.flatten([numbers_as_text | some i in numbers.range(1, 1000)])`},
		{"net.cidr_contains_matches", "", `net.cidr_contains_matches(["10.0.0.0/8" | some i in numbers.range(1, 600)], ["10.0.0.0/8" | some i in numbers.range(1, 600)])`},
		{"regex.match", "", "regex.match(`" + strings.Repeat("(a{1,1000})", 100) + "`, \"a\")"},
		{"regex.match", many, "regex.match(`" + strings.Repeat("(x{0,1000})", 6) + "y`, a)"},
		{"regex.find_n", many, "regex.find_n(`x{0,500}y|x`, a, -1)"},
		{"regex.replace", many, "regex.replace(a, `x{0,500}y|x`, \"\")"},
		{"glob.match", many, "glob.match(`" + strings.Repeat("*x", 6) + "y?`, [\"/\"], a)"},
	} {
		t.Run(row.call[:min(len(row.call), 60)], func(t *testing.T) {
			e := loadAsIs(t, "package egress\n"+row.rules+"numbers_as_text := [\"1\" | some i in numbers.range(1, 3000)]\nallow contains {\"rule\": \"r\"} if { x := "+row.call+"; x != input.via; count(numbers_as_text) > 0 }")
			err := fails(t, e, to(t, "a.test:443"))
			if !strings.Contains(err.Error(), row.name+": it would make more") {
				t.Errorf("said %q", err)
			}
		})
	}
}

// TestWhatTakesTooLongIsTriedOnceMore measures from below only: a busy machine
// takes longer.
func TestWhatTakesTooLongIsTriedOnceMore(t *testing.T) {
	const deadline = 100 * time.Millisecond
	e, err := rego.Load([]rego.Source{{Name: "slow.rego", Text: []byte("package egress\nallow contains {\"rule\": \"r\"} if count([x | some a in numbers.range(1, 1000); some b in numbers.range(1, 1000); some c in numbers.range(1, 1000); x := (a * b) * c]) > 0")}}, rego.Options{Deadline: deadline})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	fails(t, e, sends(t, "a.test:443", "GET", "/"))
	if took := time.Since(start); took < 2*deadline {
		t.Errorf("it was given up after %v", took)
	}
}

// TestAMethodThatServersReadInUpperCaseIsDenied has rules that name a method as it is registered.
func TestAMethodThatServersReadInUpperCaseIsDenied(t *testing.T) {
	for _, condition := range []string{`input.http.method == "POST"`, `input.http.method in {"POST", "PUT"}`} {
		e := load(t, "package egress\nallow contains {\"rule\": \"a\"}\ndeny contains {\"rule\": \"d\"} if "+condition)
		for method, want := range map[string]policy.Class{"GET": "", "POST": policy.RuleDeny, "post": policy.MethodDenied, "Post": policy.MethodDenied} {
			if d := evaluate(t, e, sends(t, "a.test:443", method, "/")); d.Class != want {
				t.Errorf("%s with %s: %v %s, want %q", condition, method, d.Verdict, d.Class, want)
			}
		}
	}
	unread := load(t, "package egress\nallow contains {\"rule\": \"a\"} if path.matches(input.http.path, \"/**\")")
	if d := evaluate(t, unread, sends(t, "a.test:443", "post", "/")); d.Verdict != policy.Allow {
		t.Errorf("a policy that reads no method: %v %s", d.Verdict, d.Reason)
	}
}
