package ui

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/index"
	"github.com/egressd/egressd/record"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

var targets = []string{
	"/", "/timeline", "/destinations", "/destinations?by=program", "/sent", "/attempts", "/requests", "/requests?show=01KB000001", "/requests?show=01KB000003", "/requests?sort=who", "/review", "/review?of=denied", "/health", "/help", "/?q=verdict:deny", "/?q=%22%3Cscript%3E", "/?q=nokey:%E2%80%AE", "/request/01KB000001", "/request/01KB000003",
}

var (
	ours  = regexp.MustCompile(`(?s)<style>.*?</style>|<script>.*?</script>`)
	hrefs = regexp.MustCompile(`(?:href|src|action)="([^"]*)"`)
)

// TestWhatASandboxWroteIsInert looks for the texts of a hostile log in each view.
func TestWhatASandboxWroteIsInert(t *testing.T) {
	p := opened(t, Options{Dir: logOf(t)})
	for begin := time.Now(); time.Since(begin) < 10*time.Second; { // until the search has ended
		if _, text := p.ask("GET", "/v1/attempts", nil); strings.Contains(text, `"complete":true`) {
			break
		}
	}
	shown := map[string]bool{}
	for _, target := range targets {
		answer, text := p.ask("GET", target, nil)
		if answer.StatusCode != 200 {
			t.Fatalf("%s: %s\n%.300s", target, answer.Status, text)
		}
		if strings.Count(text, "<script>") != 1 || strings.Count(text, "</style>") != 1 {
			t.Errorf("%s has another script or style", target)
		}
		text = ours.ReplaceAllString(text, "")
		for _, bad := range []string{"<script", "<img", "<b>", "'alert(1)", "ZgotmplZ"} {
			if strings.Contains(text, bad) {
				t.Errorf("%s holds %q", target, bad)
			}
		}
		if i := strings.IndexFunc(text, func(r rune) bool {
			return unicode.Is(unicode.Bidi_Control, r) || unicode.IsControl(r) && r != '\n' || unicode.IsMark(r) || r == '\u200b'
		}); i >= 0 && !strings.Contains(target, "nokey") {
			t.Errorf("%s has %q at %d", target, text[max(0, i-40):i+4], i)
		}
		for _, found := range hrefs.FindAllStringSubmatch(text, -1) {
			link := html.UnescapeString(found[1])
			if u, err := url.Parse(link); err != nil || u.Host != "" || u.Scheme != "" && !strings.HasPrefix(link, "data:image/svg+xml,") || !strings.HasPrefix(link, "/") && !strings.HasPrefix(link, "#") && !strings.HasPrefix(link, "data:") {
				t.Errorf("%s links to %q", target, link)
			}
		}
		plain := html.UnescapeString(text)
		for _, h := range []string{"<script>alert(1)</script>", `\u{202e}gnp.exe`, `\x1b[2Jgone`} {
			if strings.Contains(plain, h) {
				shown[h] = true
			}
		}
	}
	if len(shown) != 3 {
		t.Errorf("of the hostile texts only %v are shown, so the test looks at nothing", shown)
	}
}

// TestAFilterIsInTheURL follows the links of a view, and asks for what it shows.
func TestAFilterIsInTheURL(t *testing.T) {
	p := opened(t, Options{Dir: logOf(t)})
	for target, want := range map[string]string{
		"/requests?q=host:evil.test":              "evil.test:443",
		"/requests?q=host:evil.test+verdict:deny": "× 41",
		"/requests?q=host:evil.test+verdict:ask":  "Nothing matches",
		"/?q=hots:x":                              "did you mean host:x",
		"/?q=run:last":                            "egressd ui --run last",
		"/sent?q=host:evil.test":                  "Nothing went up",
	} {
		if _, text := p.ask("GET", target, nil); !strings.Contains(html.UnescapeString(text), want) {
			t.Errorf("%s does not hold %q", target, want)
		}
	}
	q := &query{View: "/x", words: []string{"host:a", "since:1h", "up:>1k"}}
	if got := q.with("/y", term("host", "b c")); got != "/y?q="+url.QueryEscape(`since:1h up:>1k host:"b c"`) {
		t.Errorf("with: %s", got)
	}
	if got := q.without("since"); got != "/x?q="+url.QueryEscape("host:a up:>1k") {
		t.Errorf("without: %s", got)
	}
}

// TestAWrongFilterShowsNothing looks for records in each view whose filter cannot be understood, and for the reason.
func TestAWrongFilterShowsNothing(t *testing.T) {
	p := opened(t, Options{Dir: logOf(t)})
	p.ask("GET", "/attempts", nil) // the search of the whole log, which must not be shown for another filter
	for _, view := range []string{"/", "/timeline", "/destinations", "/destinations?by=program", "/sent", "/attempts", "/requests", "/review", "/review?of=denied"} {
		for _, wrong := range []string{"hots:x", "verdict:denied", "since:tomorrow", "up:>lots", `path:"/a`, "run:last", strings.Repeat("x", longestFilter+1)} {
			to, _ := url.Parse(view)
			options := to.Query()
			options.Set("q", wrong)
			to.RawQuery = options.Encode()
			answer, text := p.ask("GET", to.String(), nil)
			shown := strings.Contains(text, "/request/01KB") && !strings.Contains(text, "<ul class=\"events\">") || strings.Contains(text, `class="deny"`) || strings.Contains(text, "evil.test")
			if answer.StatusCode != 200 || shown || !strings.Contains(text, `aria-invalid="true"`) || !strings.Contains(text, "Nothing is shown") {
				t.Errorf("%s with the filter %.20q: %s, records are shown: %v", view, wrong, answer.Status, shown)
			}
			if len(wrong) < longestFilter && view != "/attempts" && !strings.Contains(text, url.QueryEscape(wrong)) {
				t.Errorf("%s: the other views lose the filter %q", view, wrong)
			}
		}
	}
}

// TestAFewDenialsAreSeen beside a hundred thousand decisions that allow.
func TestAFewDenialsAreSeen(t *testing.T) {
	sum := &index.Sum{Minutes: map[int64]*index.Minute{29_000_000: {Allowed: 100_000, Denied: 3}, 29_000_001: {Allowed: 7, Denied: 30}, 29_000_002: {Asked: 5}}}
	c := bars(sum, &query{}, 100)
	for i, want := range []float64{deniedPart / 10, deniedPart, 0} {
		if got := c.Bars[i].Denies.Height; got != want {
			t.Errorf("denials of bar %d are %.2f high, want %.2f", i, got, want)
		}
	}
	for i, b := range c.Bars {
		if b.Allows.Y < 0 || b.Allows.Y+b.Allows.Height > float64(c.Base)+0.01 || b.Denies.Height > 0 && b.Denies.Y != float64(c.Base) || b.Denies.Y+b.Denies.Height > chartHeight {
			t.Errorf("bar %d leaves its part: %+v", i, b)
		}
	}
	if delete(sum.Minutes, 29_000_000); bars(&index.Sum{Minutes: map[int64]*index.Minute{1: {Allowed: 7}}}, &query{}, 100).Base != chartHeight {
		t.Error("without denials the others do not have the whole height")
	}
}

var (
	tableRows = regexp.MustCompile(`(?s)<tr[ >].*?</tr>`)
	headLinks = regexp.MustCompile(`<a href="([^"]*sort=-?([a-z]+)[^"]*)"`)
	cellTexts = regexp.MustCompile(`(?s)<td[^>]*>(.*?)</td>`)
	tags      = regexp.MustCompile(`<[^>]*>`)
)

// cells returns the texts of one column of the last table of a view.
func cells(text string, column int) (all []string) {
	text = text[max(0, strings.LastIndex(text, "<tbody>")):]
	for _, row := range tableRows.FindAllString(text, -1) {
		if found := cellTexts.FindAllStringSubmatch(row, -1); column < len(found) {
			all = append(all, strings.TrimSpace(tags.ReplaceAllString(found[column][1], "")))
		}
	}
	return all
}

// TestTablesSortByEachColumn follows the head of each column both ways: one way is the other one backwards, and numbers go up.
func TestTablesSortByEachColumn(t *testing.T) {
	dir, policy, _ := actsLog(t)
	p := opened(t, Options{Dir: dir, HasPolicy: true, Config: policy})
	for view, columns := range map[string]int{"/": 10, "/requests": 9, "/sent": 8, "/timeline": 4, "/review?of=denied": 6, "/policy": 7, "/destinations": 8} {
		_, text := p.ask("GET", view, nil)
		links := headLinks.FindAllStringSubmatch(text, -1)
		if len(links) != columns {
			t.Errorf("%s has %d columns to sort by, not %d", view, len(links), columns)
		}
		for i, link := range links {
			up := strings.Replace(html.UnescapeString(link[1]), "sort=-", "sort=", 1)
			_, ascending := p.ask("GET", up, nil)
			_, descending := p.ask("GET", strings.Replace(up, "sort=", "sort=-", 1), nil)
			if strings.Contains(ascending, "no column") || view != "/destinations" && !strings.Contains(ascending, `aria-sort="ascending"`) {
				t.Errorf("%s is not sorted by %s", view, link[2])
			}
			if view == "/destinations" {
				continue
			}
			a, d := cells(ascending, i), cells(descending, i)
			slices.Reverse(d)
			if len(a) == 0 || !slices.Equal(a, d) {
				t.Errorf("%s by %s: %q, and the other way round, backwards %q", view, link[2], a, d)
			}
			if link[2] == "dest" && !slices.IsSorted(a) || slices.Contains([]string{"count", "hits", "denied", "allowed"}, link[2]) && !slices.IsSortedFunc(a, func(x, y string) int { return cmp.Compare(digitsOf(x), digitsOf(y)) }) {
				t.Errorf("%s by %s: %q", view, link[2], a)
			}
		}
		if _, text := p.ask("GET", view+map[bool]string{true: "&", false: "?"}[strings.Contains(view, "?")]+"sort=colour", nil); !strings.Contains(text, "no column colour") {
			t.Errorf("%s by a column that there is not does not say so", view)
		}
	}
}

func digitsOf(s string) int {
	n, _ := strconv.Atoi(strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, s))
	return n
}

// TestNowRanks has what was denied most, where most went, and what is new in the window and was not there before.
func TestNowRanks(t *testing.T) {
	dir := t.TempDir()
	var b strings.Builder
	b.WriteString(`{"v":1,"seq":0,"time":"2026-11-18T09:00:00.000000Z","kind":"start","note":"started"}` + "\n")
	seq := 1
	add := func(day int, host, action string, count, up int) {
		id := fmt.Sprintf("01KB%06d", seq)
		fmt.Fprintf(&b, `{"v":1,"seq":%d,"time":"2026-11-%dT12:00:%02d.000000Z","kind":"open","flow":"%s","sandbox":"ci","via":"connect","dst":{"host":%q,"port":443},"decision":{"action":%q,"rule":"r","layer":"user"}}`+"\n", seq, day, seq, id, host, action)
		seq++
		if action == "allow" {
			fmt.Fprintf(&b, `{"v":1,"seq":%d,"time":"2026-11-%dT12:00:%02d.500000Z","kind":"close","flow":"%s","sandbox":"ci","bytes":{"up":%d,"down":1},"duration_ms":9}`+"\n", seq, day, seq, id, up)
			seq++
		}
		for range count - 1 {
			fmt.Fprintf(&b, `{"v":1,"seq":%d,"time":"2026-11-%dT12:00:%02d.000000Z","kind":"open","flow":"01KC%06d","sandbox":"ci","via":"connect","dst":{"host":%q,"port":443},"decision":{"action":%q,"rule":"r","layer":"user"}}`+"\n", seq, day, min(seq, 59), seq, host, action)
			seq++
		}
	}
	add(18, "old.test", "allow", 1, 900_000)
	add(18, "refused.test", "deny", 3, 0)
	add(20, "old.test", "allow", 1, 5)
	add(20, "young.test", "allow", 1, 7000)
	add(20, "refused.test", "deny", 2, 0)
	add(20, "probed.test", "deny", 4, 0)
	for i := range 6 { // newer than the one that something passed to
		add(20, fmt.Sprintf("noise%d.test", i), "deny", 1, 0)
	}
	if err := os.WriteFile(filepath.Join(dir, "00000001.log"), []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	p := opened(t, Options{Dir: dir})
	for filter, want := range map[string][3][]string{
		"":                           {{"refused.test:443", "probed.test:443", "noise0.test:443", "noise1.test:443", "noise2.test:443"}, {"old.test:443", "young.test:443"}, {"young.test:443", "noise5.test:443", "noise4.test:443", "noise3.test:443", "noise2.test:443"}},
		"since:2026-11-20 -noise":    {{"probed.test:443", "refused.test:443"}, {"young.test:443", "old.test:443"}, {"young.test:443", "probed.test:443"}},
		"until:2026-11-19":           {{"refused.test:443"}, {"old.test:443"}, {"old.test:443", "refused.test:443"}},
		"since:2026-11-20 host:old*": {nil, {"old.test:443"}, nil},
	} {
		_, text := p.ask("GET", "/?q="+url.QueryEscape(filter), nil)
		_, text, _ = strings.Cut(text, `class="rankings"`)
		text, _, _ = strings.Cut(text, "</section>")
		for i, part := range strings.Split(text, "<ol>")[1:] {
			part, _, _ = strings.Cut(part, "</ol>")
			var got []string
			for _, found := range regexp.MustCompile(`<a class="dest"[^>]*>([^<]*)<`).FindAllStringSubmatch(part, -1) {
				got = append(got, found[1])
			}
			if !slices.Equal(got, want[i]) {
				t.Errorf("%q: ranking %d is %q, want %q", filter, i, got, want[i])
			}
		}
	}
}

// TestWhatIsShownIsExported compares an export with the records that the filter takes.
func TestWhatIsShownIsExported(t *testing.T) {
	dir, policy, _ := actsLog(t)
	p := opened(t, Options{Dir: dir, HasPolicy: true, Config: policy})
	_, text := p.ask("GET", "/requests?q=host:pkgs.corp.example", nil)
	for format, kind := range map[string]string{"csv": "text/csv; charset=utf-8", "json": "application/json"} {
		link := "/v1/export?" + url.Values{"format": {format}, "q": {"host:pkgs.corp.example"}}.Encode()
		if !strings.Contains(text, html.EscapeString(link)) {
			t.Errorf("the list has no link to %s", link)
		}
		answer, file := p.ask("GET", link, nil)
		lines := strings.Count(file, "\n") - map[string]int{"csv": 1}[format]
		if answer.StatusCode != 200 || answer.Header.Get("Content-Type") != kind || !strings.HasPrefix(answer.Header.Get("Content-Disposition"), "attachment") || lines != 2 || strings.Count(file, "pkgs.corp.example") < 2 || strings.Contains(file, "ruled.test") {
			t.Errorf("%s: %s %s: %s", format, answer.Status, answer.Header.Get("Content-Type"), file)
		}
	}
	for _, target := range []string{"/v1/export?format=xml", "/v1/export?q=hots:x&format=csv"} {
		if answer, _ := p.ask("GET", target, nil); answer.StatusCode != 400 {
			t.Errorf("%s: %s", target, answer.Status)
		}
	}
	if _, text := p.ask("GET", "/requests?q=hots:x", nil); strings.Contains(text, "/v1/export") {
		t.Error("a wrong filter is exported")
	}
}

// TestAFilterStaysInItsView follows the links of a filtered view: its own arrangements keep the filter, and other views have its time and run.
func TestAFilterStaysInItsView(t *testing.T) {
	dir, policy, _ := actsLog(t)
	p := opened(t, Options{Dir: dir, HasPolicy: true, Config: policy})
	const filter = "host:pkgs.corp.example since:2026-11-20"
	_, text := p.ask("GET", "/requests?"+url.Values{"q": {filter}}.Encode(), nil)
	words := map[string]string{}
	for _, one := range regexp.MustCompile(`<a href="(/[^"]*)"[^>]*>(Where|Attempts|Timeline|Now)<`).FindAllStringSubmatch(text, -1) {
		link, err := url.Parse(html.UnescapeString(one[1]))
		if err != nil {
			t.Fatal(err)
		}
		words[one[2]] = link.Query().Get("q")
	}
	want := map[string]string{"Now": filter, "Timeline": filter, "Where": "since:2026-11-20", "Attempts": ""}
	if !maps.Equal(words, want) {
		t.Errorf("the links have %q, want %q", words, want)
	}
}

// TestThereAreFiveViews, each with its arrangements, and every arrangement is reached from the first one of its view.
func TestThereAreFiveViews(t *testing.T) {
	dir, policy, flows := actsLog(t)
	p := opened(t, Options{Dir: dir, HasPolicy: true, Config: policy, Dial: func() (Daemon, error) { return &daemonFake{questions: oneQuestion}, nil }})
	link := regexp.MustCompile(`<a href="([^"]+)"`)
	links := func(text, label string) (all []string) {
		_, text, found := strings.Cut(text, `<nav`+label)
		if !found {
			return nil
		}
		text, _, _ = strings.Cut(text, "</nav>")
		for _, one := range link.FindAllStringSubmatch(text, -1) {
			all = append(all, html.UnescapeString(one[1]))
		}
		return all
	}
	_, text := p.ask("GET", "/?q=verdict:deny", nil)
	top := links(text, ` aria-label="Views"`)
	if len(top) != 5 {
		t.Fatalf("the views are %q", top)
	}
	reached := map[string]bool{}
	for _, view := range top {
		_, text := p.ask("GET", view, nil)
		for _, one := range append(links(text, ` class="sub"`), view) {
			answer, text := p.ask("GET", one, nil)
			reached[strings.SplitN(one, "?", 2)[0]] = true
			if answer.StatusCode != 200 || !strings.Contains(text, `aria-current="page"`) {
				t.Errorf("%s: %s, and no view is marked", one, answer.Status)
			}
		}
	}
	for pattern := range p.routes() {
		method, path, _ := strings.Cut(pattern, " ")
		if path = strings.TrimSuffix(path, "{$}"); method == "GET" && !strings.HasPrefix(path, "/v1/") && !strings.ContainsAny(path, "{") && !reached[path] && !slices.Contains([]string{"/help", "/state", "/act", "/questions/save"}, path) {
			t.Errorf("no view leads to %s", path)
		}
	}
	if _, text := p.ask("GET", "/requests?show="+flows["plain request"], nil); !strings.Contains(text, `class="detail"`) || !strings.Contains(text, "GET /simple/left-pad/ by http") {
		t.Error("a request does not stand beside the list")
	}
	if _, text := p.ask("GET", "/requests?q=host:a&show=%3Cb%3E", nil); strings.Contains(text, "<b>\"") || !strings.Contains(text, "is not the id") {
		t.Error("a request that is none")
	}
	if _, text := p.ask("GET", "/destinations?by=program", nil); !strings.Contains(text, "curl to pkgs.corp.example") && !strings.Contains(text, "curl to corp.example") {
		t.Errorf("the map: %.1500s", mainOf(text))
	}
	if _, text := p.ask("GET", "/sent?q=verdict:deny", nil); !strings.Contains(text, `class="printed"`) || !strings.Contains(text, "log "+dir+", filter verdict:deny") {
		t.Error("what is printed does not say of which log and filter")
	}
}

// TestAViewSaysHowFarItReaches: a record that comes after the sum of a view and before its page is no part of the view, so
// the browser must be told of it.
func TestAViewSaysHowFarItReaches(t *testing.T) {
	p := opened(t, Options{Dir: logOf(t)})
	sum := p.index.Sum(t.Context(), &logs.Filter{}, nil)
	sum.Progress.Next = 7
	w := httptest.NewRecorder()
	p.write(w, httptest.NewRequest("GET", "/review", nil), 200, "review", nil, sum, reviewView{})
	if !strings.Contains(w.Body.String(), `data-next="7"`) {
		t.Error("the page claims records that the view does not have")
	}
}

// TestTilesCoverTheMap checks that areas are as the sizes, and that nothing lies outside.
func TestTilesCoverTheMap(t *testing.T) {
	tiles := treemap([]tile{{Size: 600}, {Size: 0}, {Size: 250}, {Size: 100}, {Size: 49}, {Size: 1}}, 1000, 260)
	area := 0.0
	for _, one := range tiles {
		a := one.Width * one.Height
		area += a
		if one.X < 0 || one.Y < 0 || one.X+one.Width > 1000.1 || one.Y+one.Height > 260.1 {
			t.Errorf("%+v lies outside", one)
		}
		if want := float64(one.Size) * 260; a < want*0.9-2 || a > want*1.1+2 {
			t.Errorf("size %d has the area %.0f, want %.0f", one.Size, a, want)
		}
	}
	if len(tiles) != 5 || area < 259_000 || area > 261_000 {
		t.Errorf("%d tiles cover %.0f of 260000", len(tiles), area)
	}
}

// TestASmallPartIsNotNothing: a part that is not all is never said to be all.
func TestASmallPartIsNotNothing(t *testing.T) {
	for _, row := range []struct {
		part, whole int64
		want        string
	}{{0, 0, "0 %"}, {0, 7, "0 %"}, {1, 1000, "under 1 %"}, {1, 3, "33 %"}, {994, 1000, "99 %"}, {995, 1000, "over 99 %"}, {999, 1000, "over 99 %"}, {7, 7, "100 %"}} {
		if got := percent(row.part, row.whole); got != row.want {
			t.Errorf("%d of %d: %s, want %s", row.part, row.whole, got, row.want)
		}
	}
}

// TestOpenAPI compares docs/openapi.json with the handlers: their addresses, their parameters, and answers of each.
func TestOpenAPI(t *testing.T) {
	p := opened(t, Options{Dir: logOf(t)})
	text, err := os.ReadFile("../docs/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var api struct {
		Paths map[string]map[string]struct {
			Parameters []struct {
				Name, In string
				Ref      string `json:"$ref"`
			}
			Responses map[string]json.RawMessage
		}
	}
	if err := json.Unmarshal(text, &api); err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	whole, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err == nil {
		err = compiler.AddResource("openapi.json", whole)
	}
	if err != nil {
		t.Fatal(err)
	}
	described := 0
	for pattern := range p.routes() {
		method, path, _ := strings.Cut(pattern, " ")
		if strings.HasPrefix(path, "/v1/") {
			described++
			if _, there := api.Paths[path][strings.ToLower(method)]; !there {
				t.Errorf("openapi.json does not have %s", pattern)
			}
		}
	}
	if described != len(api.Paths) {
		t.Errorf("openapi.json has %d paths, the handlers %d", len(api.Paths), described)
	}
	for schema, all := range map[string][]string{
		"records":  {"/v1/records", "/v1/records?q=host:evil.test&limit=1", "/v1/records?before=3"},
		"counts":   {"/v1/counts", "/v1/counts?by=rule&limit=2", "/v1/counts?by=domain"},
		"timeline": {"/v1/timeline", "/v1/timeline?bars=7&q=verdict:deny", "/v1/timeline?q=host:nobody"},
		"attempts": {"/v1/attempts"},
		"health":   {"/v1/health"},
		"story":    {"/v1/stories/01KB000001", "/v1/stories/01kb000003"},
		"failure":  {"/v1/records?limit=0", "/v1/records?limit=x", "/v1/records?q=hots:x", "/v1/counts?by=nothing", "/v1/records?other=1", "/v1/stories/nothing", "/v1/stories/01KB009999", "/v1/proofs/x", "/v1/proofs/1"},
	} {
		compiled, err := compiler.Compile("openapi.json#/components/schemas/" + schema)
		if err != nil {
			t.Fatal(err)
		}
		for _, target := range all {
			answer, body := p.ask("GET", target, nil)
			if (answer.StatusCode == 200) == (schema == "failure") {
				t.Errorf("%s: %s", target, answer.Status)
			}
			v, err := jsonschema.UnmarshalJSON(strings.NewReader(body))
			if err == nil {
				err = compiled.Validate(v)
			}
			if err != nil {
				t.Errorf("%s: %v in %.200s", target, err, body)
			}
		}
	}
	for path, methods := range api.Paths {
		for _, parameter := range methods["get"].Parameters {
			name := parameter.Name
			if parameter.Ref != "" {
				name = "q"
			}
			if strings.Contains(path, "{") || path == eventsPath {
				continue
			}
			if answer, body := p.ask("GET", path+"?"+name+"=", nil); answer.StatusCode != 200 {
				t.Errorf("%s does not take %s: %s", path, name, body)
			}
		}
	}
}

// TestAStoryIsThatOfTheLog compares a story with the records of its flow.
func TestAStoryIsThatOfTheLog(t *testing.T) {
	p := opened(t, Options{Dir: logOf(t)})
	_, text := p.ask("GET", "/v1/stories/01KB000001", nil)
	var s struct {
		Flow    string
		Records []record.Record
	}
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	if s.Flow != "01KB000001" || len(s.Records) != 2 || s.Records[0].Seq != 1 || s.Records[1].Kind != record.KindClose {
		t.Errorf("%s", text)
	}
}

// TestTheAxisIsTrue puts each bar where the labels of the axis have its time, for a log of minutes and for one of days.
func TestTheAxisIsTrue(t *testing.T) {
	for _, minutes := range [][]int64{{0}, {0, 2}, {0, 29}, {0, 30}, {0, 77}, {0, 5000, 9000}} {
		sum := &index.Sum{Minutes: map[int64]*index.Minute{}}
		for _, m := range minutes {
			sum.Minutes[29_000_000+m] = &index.Minute{Denied: 1}
		}
		c := bars(sum, &query{}, 100)
		whole := c.To.Sub(c.From).Seconds()
		for _, b := range c.Bars {
			if at := b.From.Sub(c.From).Seconds() / whole * chartWidth; b.X < at-0.01 || b.X > at+0.01 || b.X+b.Width > chartWidth {
				t.Errorf("minutes %v: the bar of %s begins at %.2f, and the axis has that time at %.2f", minutes, b.From, b.X, at)
			}
		}
	}
}
