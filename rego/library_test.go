package rego

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/tester"
	"pgregory.net/rapid"

	"github.com/egressd/egressd/policy"
)

// TestLibrary runs the library's own tests with both of its forms.
func TestLibrary(t *testing.T) {
	for _, dir := range []string{"lib", "native"} {
		t.Run(dir, func(t *testing.T) {
			modules := parseAll(t, dir, func(name string) bool { return !strings.HasSuffix(name, "_test.rego") })
			maps.Copy(modules, parseAll(t, "lib", func(name string) bool { return strings.HasSuffix(name, "_test.rego") }))
			for _, r := range runTests(t, modules) {
				if !r.Pass() {
					t.Errorf("%s: %s %v", r.Location, r.Name, r.Error)
				}
			}
		})
	}
}

func parseAll(t *testing.T, dir string, want func(string) bool) map[string]*ast.Module {
	t.Helper()
	names, err := fs.Glob(libraryFiles, dir+"/*.rego")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	modules := map[string]*ast.Module{}
	for _, name := range names {
		if !want(name) {
			continue
		}
		text, err := libraryFiles.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if modules[name], err = ast.ParseModuleWithOpts(name, string(text), ast.ParserOptions{RegoVersion: ast.RegoV1}); err != nil {
			t.Fatal(err)
		}
	}
	return modules
}

func runTests(t *testing.T, modules map[string]*ast.Module) (all []*tester.Result) {
	t.Helper()
	results, err := tester.NewRunner().RaiseBuiltinErrors(true).AddCustomBuiltins(testBuiltins()).SetModules(modules).RunTests(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for r := range results {
		all = append(all, r)
	}
	if len(all) < 20 {
		t.Fatalf("%d tests ran", len(all))
	}
	return all
}

// both evaluates an expression with each form of the library.
func both(t interface {
	Helper()
	Fatal(...any)
}, expression string,
) (plain, native string) {
	t.Helper()
	answer := func(dir string) string {
		options := []func(*rego.Rego){rego.Query(expression), rego.StrictBuiltinErrors(true)}
		files, err := readLibrary(dir)
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			options = append(options, rego.Module(name, string(text)))
		}
		for name, b := range nativeFunctions(newCompiledLists()) {
			options = append(options, rego.FunctionDyn(&rego.Function{Name: name, Decl: b.Decl.Decl}, called(b)))
		}
		results, err := rego.New(options...).Eval(context.Background())
		switch {
		case err != nil:
			return "error"
		case len(results) == 0:
			return "undefined"
		}
		return fmt.Sprint(results[0].Expressions[0].Value)
	}
	return answer("lib"), answer("native")
}

func TestBothFormsOfTheLibraryAgree(t *testing.T) {
	for _, expression := range []string{
		`data.egressd.host.matches("example.com", "example.com:443")`,
		`data.egressd.host.matches("example.com", "https://example.com")`,
		`data.egressd.host.matches("example.com", "exa*ple.com")`,
		`data.egressd.host.matches("example.com", "**.example.com")`,
		`data.egressd.host.matches("a.example.com", "*foo.com")`,
		`data.egressd.host.matches("a.example.com", "a*b.example.com")`,
		`data.egressd.host.matches("a.example.com", "*{2}.example.com")`,
		`data.egressd.host.matches("a.example.com", "*{1}")`,
		`data.egressd.host.matches("a.example.com", "a.*.com")`,
		`data.egressd.host.matches("a.example.com", "xn--a*.example.com")`,
		`data.egressd.host.matches("example.com", "")`,
		`data.egressd.host.matches("10.0.0.1", "10.0.0.0/33")`,
		`data.egressd.host.matches("10.0.0.1", "[::1]")`,
		`data.egressd.host.any("example.com", ["example.com", "not a pattern"])`,
		`data.egressd.host.canonical("EXAMPLE.com.")`,
		`data.egressd.host.canonical("not a host")`,
		`data.egressd.host.canonical("::FFFF:10.0.0.1")`,
		`data.egressd.host.canonical("2606:2800:0:0::1")`,
		`data.egressd.path.matches("/a", "a")`,
		`data.egressd.path.matches("/a", "/a**")`,
		`data.egressd.path.matches("/a", "/a/../b")`,
		`data.egressd.net.contains("10.0.0.0/8", "example.com")`,
		`data.egressd.net.contains("10.0.0.0/8", "")`,
		`data.egressd.net.contains("not a prefix", "10.0.0.1")`,
		`data.egressd.time.between(0, "Nowhere/Atlantis", "09:00", "10:00")`,
		`data.egressd.time.between(0, "UTC", "9:00", "10:00")`,
		`data.egressd.time.between(0, "UTC", "09:00", "24:00")`,
		`data.egressd.host.matches("a.test", "b.test")`,
		`data.egressd.host.any("a.test", ["b.test"])`,
		`data.egressd.net.contains("10.0.0.0/8", "11.0.0.1")`,
		`data.egressd.net.any(["10.0.0.0/8"], ["11.0.0.1"])`,
		`data.egressd.path.matches("/a", "/b")`,
		`data.egressd.path.any("/a", ["/b"])`,
		`data.egressd.time.on(0, "UTC", {"Monday"})`,
		`data.egressd.net.any({"10.0.0.0/8", "192.168.0.0/16"}, {"192.168.1.1"})`,
		`data.egressd.net.any([], [])`,
		`data.egressd.path.any("/a/b", {"/b", "/a/**"})`,
		`data.egressd.time.on(0, "UTC", ["Monday", "Thursday"])`,
	} {
		if plain, native := both(t, expression); plain != native {
			t.Errorf("%s is %s in Rego and %s by the built-ins", expression, plain, native)
		}
	}
}

// TestAListIsASetOrAnArray gives the functions that take one something else: had
// they no answer, a deny that asks them would not hold.
func TestAListIsASetOrAnArray(t *testing.T) {
	for _, expression := range []string{
		`data.egressd.net.any("10.0.0.0/8", ["10.0.0.1"])`,
		`data.egressd.net.any(["10.0.0.0/8"], "10.0.0.1")`,
		`data.egressd.net.any({"10.0.0.0/8": 1}, ["10.0.0.1"])`,
		`data.egressd.net.any({"x": "10.0.0.0/8"}, ["10.0.0.1"])`,
		`data.egressd.net.any(null, ["10.0.0.1"])`,
		`data.egressd.net.any([1], ["10.0.0.1"])`,
		`data.egressd.net.any(["10.0.0.0/8"], ["example.com"])`,
		`data.egressd.path.any("/x", "/x")`,
		`data.egressd.path.any("/x", {"/x": 1})`,
		`data.egressd.path.any("/x", {"x": "/x"})`,
		`data.egressd.path.any("/x", 5)`,
		`data.egressd.path.any("/x", [5])`,
		`data.egressd.path.any("/x", ["x"])`,
		`data.egressd.time.on(0, "UTC", "Thursday")`,
		`data.egressd.time.on(0, "UTC", {"thursday"})`,
		`data.egressd.time.on(0, "UTC", ["Monday", "Thu"])`,
		`data.egressd.time.on(0, "UTC", {"Monday": "Thursday"})`,
		`data.egressd.time.on(0, "UTC", 4)`,
		`data.egressd.time.on(0, "UTC", null)`,
	} {
		if plain, native := both(t, expression); plain != "error" || native != "error" {
			t.Errorf("%s is %s in Rego and %s by the built-ins", expression, plain, native)
		}
	}
}

func TestHostsAgreeOnAnyText(t *testing.T) {
	label := rapid.StringMatching(`[a-zA-Z0-9_-]{0,4}|xn|0x1|10|\.|:|%|\[|\]|\x00`)
	rapid.Check(t, func(t *rapid.T) {
		host := strings.Join(rapid.SliceOfN(label, 1, 4).Draw(t, "labels"), ".")
		if strings.HasPrefix(strings.ToLower(host), "xn--") {
			return
		}
		if plain, native := both(t, fmt.Sprintf("data.egressd.host.matches(%q, %q)", host, "*")); plain != native {
			t.Fatalf("%q is %s in Rego and %s by the built-ins", host, plain, native)
		}
	})
}

func TestPatternsAgreeOnAnyText(t *testing.T) {
	label := rapid.SampledFrom([]string{"a", "ab", "*", "a*", "*b", "*{1}", "*{2}", "a*b", "A-*", "-*", "*-b", "*-", "1*", "7", "test", "", "xn--*", "*x/8"})
	text := rapid.Custom(func(t *rapid.T) string { return strings.Join(rapid.SliceOfN(label, 1, 4).Draw(t, "labels"), ".") })
	host := rapid.SampledFrom([]string{"a.test", "ab.test", "a.ab.test", "ab.ab.test", "a-b.a.test", "a-.a.test", "b.a.b.test", "1.2.3.4", "test"})
	rapid.Check(t, func(t *rapid.T) {
		asked := fmt.Sprintf("data.egressd.host.matches(%q, %q)", host.Draw(t, "host"), text.Draw(t, "pattern"))
		if plain, native := both(t, asked); plain != native {
			t.Fatalf("%s is %s in Rego and %s by the built-ins", asked, plain, native)
		}
	})
}

func TestClassAgreesWithThePolicy(t *testing.T) {
	for text, want := range map[string]string{
		"8.8.8.8": "public", "10.0.0.1": "private", "::ffff:10.0.0.1": "private", "127.0.0.1": "loopback",
		"169.254.169.254": "metadata", "64:ff9b::a00:1": "private", "2606:2800::1": "public", "fd00::1": "unique-local",
	} {
		value, err := netClass([]*ast.Term{ast.StringTerm(text)})
		if err != nil || value.Compare(ast.String(want)) != 0 {
			t.Errorf("class of %s is %v, %v", text, value, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		addr := netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "bytes")))
		if rapid.Bool().Draw(t, "v4") {
			b := addr.As16()
			addr = netip.AddrFrom4([4]byte(b[:4]))
		}
		value, err := netClass([]*ast.Term{ast.StringTerm(addr.String())})
		if err != nil || value.Compare(ast.String(className(policy.ClassOf(addr)))) != 0 {
			t.Fatalf("class of %s is %v, %v", addr, value, err)
		}
	})
	for _, text := range []string{"", "example.com", "10.0.0.1%eth0", "fe80::1%eth0", "010.0.0.1", "10.0.0.0/8"} {
		if value, err := netClass([]*ast.Term{ast.StringTerm(text)}); err == nil {
			t.Errorf("class of %q is %v", text, value)
		}
	}
}

func TestReachesSeesThroughTranslators(t *testing.T) {
	for address, want := range map[string]bool{"64:ff9b::a01:203": true, "2002:a01:203::1": true, "10.1.2.3": true, "2606:2800::1": false} {
		value, err := netReaches([]*ast.Term{ast.StringTerm("10.0.0.0/8"), ast.StringTerm(address)})
		if err != nil || value.Compare(ast.Boolean(want)) != 0 {
			t.Errorf("reaches 10.0.0.0/8 from %s: %v, %v", address, value, err)
		}
	}
}
