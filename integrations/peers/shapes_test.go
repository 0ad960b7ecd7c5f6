package peers

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/rogpeppe/go-internal/txtar"
)

// TestShapes imports files as people write them, of which the names are changed. Beside each stand the verdicts that the
// tool's documents give, or what is wrong in it and where:
//
//	allow GET https://x.test/a        a request
//	ask x.test:443 => 10.1.2.3        a tunnel, to a name that leads to an address
//	widen allow x.test:443            with --allow-wider
//	name ci                           with --name ci
//	nothing                           the policy allows nothing
//	lost 2                            two lines are stricter or left out
//	widens 1                          of which --allow-wider takes one
//	error 3:5 network.allowedDomains  an error at a line and a column, which names this
func TestShapes(t *testing.T) {
	const fewest = 10
	for _, k := range kinds {
		archive, err := txtar.ParseFile(filepath.Join("testdata/shapes", k.Name+".txtar"))
		if err != nil {
			t.Error(err)
			continue
		}
		if n := len(archive.Files) / 2; n < fewest {
			t.Errorf("%s has %d shapes", k.Name, n)
		}
		for i := 0; i+1 < len(archive.Files); i += 2 {
			file, verdicts := archive.Files[i], archive.Files[i+1]
			if verdicts.Name != file.Name+".verdicts" {
				t.Fatalf("%s: %s has no verdicts", k.Name, file.Name)
			}
			t.Run(k.Name+"/"+file.Name, func(t *testing.T) { holdsShape(t, k.Name, file.Data, strings.TrimSpace(string(verdicts.Data))) })
		}
	}
}

func holdsShape(t *testing.T, kind string, text []byte, verdicts string) {
	var o Options
	if rest, ok := strings.CutPrefix(verdicts, "name "); ok {
		o.Name, verdicts, _ = strings.Cut(rest, "\n")
	}
	c, err := Import(kind, text, o)
	if want, ok := strings.CutPrefix(verdicts, "error "); ok {
		holdsError(t, err, want)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	p := compiled(t, c.Text)
	if (len(c.Wider) > 0) || c.Nothing() != strings.Contains("\n"+verdicts+"\n", "\nnothing\n") {
		t.Errorf("wider %q, nothing %t\n%s%q", c.Wider, c.Nothing(), c.Text, c.Stricter)
	}
	for line := range strings.Lines(verdicts) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		number := map[string]int{"lost": c.Lost, "widens": c.Widens}
		switch word {
		case "nothing":
		case "lost", "widens":
			if fmt.Sprint(number[word]) != rest {
				t.Errorf("%s is %d, want %s: %q", word, number[word], rest, c.Stricter)
			}
		case "widen":
			wide, err := Import(kind, text, Options{Name: o.Name, Widen: true})
			if err != nil {
				t.Fatal(err)
			}
			want, request, _ := strings.Cut(rest, " ")
			holdsVerdict(t, compiled(t, wide.Text), want, request, wide)
		default:
			holdsVerdict(t, p, word, rest, c)
		}
	}
}

// holdsError compares an error with "3:5 network.allowedDomains", or with a text alone where the error has no place.
func holdsError(t *testing.T, err error, want string) {
	t.Helper()
	place, text, hasPlace := strings.Cut(want, " ")
	line, column, isPlace := strings.Cut(place, ":")
	if _, number := strconv.Atoi(line); !hasPlace || !isPlace || number != nil {
		line, text = "", want
	}
	at, placed := errors.AsType[*PlaceError](err)
	if err == nil || !strings.Contains(err.Error(), text) || placed != (line != "") || placed && (fmt.Sprint(at.Line) != line || fmt.Sprint(at.Column) != column) {
		t.Errorf("got %v, want %s", err, want)
	}
}

func holdsVerdict(t *testing.T, p *policy.Policy, want, request string, c *Conversion) {
	t.Helper()
	if got := lets(p, questionOf(t, request)); got.String() != want {
		t.Errorf("%s: %s, want %s, of\n%s%s", request, got, want, c.Text, strings.Join(c.Stricter, "\n"))
	}
}

// questionOf reads "x.test:443", "GET https://x.test/", and addresses behind "=>".
func questionOf(t *testing.T, text string) (q question) {
	t.Helper()
	text, resolved, _ := strings.Cut(text, " => ")
	for field := range strings.FieldsSeq(resolved) {
		q.resolved = append(q.resolved, netip.MustParseAddr(field))
	}
	method, address, isRequest := strings.Cut(text, " ")
	if !isRequest {
		at := strings.LastIndexByte(text, ':')
		n, err := strconv.ParseUint(text[at+1:], 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		q.host, q.port = text[:at], uint16(n)
	} else {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		q.method, q.host, q.path, q.query, q.port = method, u.Hostname(), u.Path, u.RawQuery, map[string]uint16{"http": 80, "https": 443}[u.Scheme]
		if u.Port() != "" {
			n, _ := strconv.ParseUint(u.Port(), 10, 16)
			q.port = uint16(n)
		}
	}
	if addr, err := netip.ParseAddr(q.host); err == nil {
		q.addr = addr
	}
	return q
}

// TestDeepSettings reads files that a parser must not follow to their ends.
func TestDeepSettings(t *testing.T) {
	for _, text := range []string{strings.Repeat("[", 1<<20), `{"a": ` + strings.Repeat("[ \"]\", // ]\n {\"\\\"}\": /*]*/ ", 1<<15)} {
		for _, kind := range []string{"claude", "srt"} {
			if _, err := Import(kind, []byte(text), Options{}); err == nil {
				t.Errorf("%s reads %.40s", kind, text)
			}
		}
	}
	if _, err := Import("nobody", nil, Options{}); err == nil {
		t.Error("nobody is a kind")
	}
	if entries, err := os.ReadDir("testdata/shapes"); err != nil || len(entries) != len(kinds) {
		t.Errorf("%d files of shapes for %d kinds, %v", len(entries), len(kinds), err)
	}
}
