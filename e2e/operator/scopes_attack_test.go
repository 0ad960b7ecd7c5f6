package operator

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

// shownSave returns the digest of the change that a link shows.
func (r *chatRoom) shownSave(t *testing.T, link string) string {
	t.Helper()
	_, text := r.post(t, link, formType, "answer=yes&save=look")
	_, digest, _ := strings.Cut(text, `name="save" value="`)
	digest, _, _ = strings.Cut(digest, `"`)
	if len(digest) != 64 {
		t.Fatalf("it shows %s", text)
	}
	return digest
}

// forGoodRoom has links that may approve for good.
func forGoodRoom(t *testing.T, more string) *chatRoom {
	r := newChatRoom(t, "slack", more)
	r.d.Edit(t, strings.Replace(chatPolicy("slack", more), "notify: {", "notify: {for_good: true, ", 1))
	r.d.ExpectPolicy(t, func(p record.Record) bool { return strings.HasPrefix(p.Note, "reloaded") })
	return r
}

// TestNoAnswerIsMadeOfAnother: what is no answer, or one to something else, leaves the question and the file as they were. The last rows are
// sent from inside the sandbox.
func TestNoAnswerIsMadeOfAnother(t *testing.T) {
	r := forGoodRoom(t, "allow: [tool.test]\nlimits: {ask_wait: 1s}\n"+twoSandboxes)
	d := r.d
	askFor(t, d, "a.allowed.test", "/x")
	askFor(t, d, "b.allowed.test", "/x")
	link, other := linkIn(t, r.message(t, "a.allowed.test")), linkIn(t, r.message(t, "b.allowed.test"))
	digest, foreign := r.shownSave(t, link), r.shownSave(t, other)
	before := fileOf(t, d)
	q, b := isAsked(t, d, 0, "a.allowed.test", "/x"), isAsked(t, d, 0, "b.allowed.test", "/x")
	untouched := func(what string) {
		t.Helper()
		for _, one := range questions(t, d) {
			if one.State != "pending" {
				t.Fatalf("%s: %s is %s", what, one.Host, one.State)
			}
		}
		if fileOf(t, d) != before {
			t.Fatalf("%s: the file is %s", what, fileOf(t, d))
		}
	}
	for _, body := range []string{
		"", "answer=", "answer=YES", "answer=yes+", "answer=approve", "answer=yes&answer=no", "answer=yes&x=1", "answer=yes;save=" + digest,
		"answer=yes&save=", "answer=yes&save=0", "answer=yes&save=" + foreign, "answer=yes&save=" + strings.ToUpper(digest), "answer=yes&save=" + digest + "+",
		"answer=yes&save=" + digest[:63], "answer=yes&save=" + digest + "&save=" + digest, "answer=yes&save=" + digest + "&for=1h", "answer=yes&save=" + digest + "&once=true",
		"answer=yes&save=" + digest + "&this_run=true", "answer=no&save=" + digest, "answer=no&save=look", "answer=yes&save=look&for=1h",
		"answer=yes&this_run=true", "answer=no&this_run=true", "answer=yes&this_run=maybe", "answer=yes&this_run=true&once=true", "answer=no&once=true", "answer=yes&once=true",
		"answer=yes&for=25h", "answer=yes&for=-1s", "answer=yes&for=0", "answer=yes&for=1h&for=24h", "answer=yes&for=good", "answer=yes&terms=" + b.Terms,
	} {
		if status, text := r.post(t, link, formType, body); status == http.StatusOK && !strings.Contains(text, `name="save"`) {
			t.Errorf("%q got %d %s", body, status, text)
		}
		untouched(body)
	}
	for _, row := range [][2]string{
		{"text/plain", "answer=yes"}, {"application/json", `{"context":{"answer":"yes","for":"good"}}`}, {"application/json", `{"answer":"yes"}`},
		{"application/json", `{"context":{"answer":"yes","this_run":"true"}}`}, {"multipart/form-data; boundary=x", "--x\r\nContent-Disposition: form-data; name=\"answer\"\r\n\r\nyes\r\n--x--\r\n"},
	} {
		r.post(t, link, row[0], row[1])
		untouched(row[1])
	}
	for _, path := range []string{
		"/v1/questions/" + q.ID + "/approve?terms=" + b.Terms, "/v1/questions/" + q.ID + "/approve?save=" + foreign, "/v1/questions/" + q.ID + "/approve?save=" + digest + "&for=1h",
		"/v1/questions/" + q.ID + "/reject?save=" + digest, "/v1/questions/" + q.ID + "/approve?this_run=true", "/v1/questions/" + q.ID + "/save?save=" + digest,
		"/v1/questions/" + q.ID + "/save/approve", "/v1/questions/" + q.ID + "/approve?save=look",
	} {
		out := d.Curl(t, d.World.Gateway, nil, "-o", "/dev/null", "-w", "%{http_code}", "-X", "POST", "--unix-socket", d.Dir+"/operator/admin.sock", "http://egressd"+path)
		if out == "200" || out == "000" {
			t.Errorf("%s got %s", path, out)
		}
		untouched(path)
	}
	for _, line := range []string{
		"curl -sS -m 9 -X POST http://egressd.internal/v1/questions/" + q.ID + "/approve?save=" + digest,
		"curl -sS -m 9 http://egressd.internal/v1/questions/" + q.ID + "/save",
		"curl -sS -m 9 -X POST http://egressd.internal/requests/" + q.ID + "?save=" + digest,
		"curl -sS -m 9 -X PUT http://egressd.internal/requests/" + q.ID + " -d '{\"state\":\"approved\"}'",
		"curl -sS -m 9 -d 'answer=yes&save=" + digest + "' " + link,
		"curl -sS -m 9 -x socks5h://$LAB_PROXY -d 'answer=yes&save=" + digest + "' " + link,
	} {
		d.Shell(t.TempDir(), "", line)
		untouched(line)
	}
	if status, text := r.post(t, link, formType, "answer=yes&save="+digest); status != http.StatusOK || !strings.Contains(fileOf(t, d), "a.allowed.test:80") {
		t.Errorf("the right answer: %d %s", status, text)
	}
	if status, _ := r.post(t, other, formType, "answer=yes&save="+foreign); status == http.StatusOK { // the file is another one by now
		t.Error("a change of the file before counts")
	}
}

// TestOfTwoWhoAnswerOneCounts: for good and no at the same moment. The file has the line only if for good has won.
func TestOfTwoWhoAnswerOneCounts(t *testing.T) {
	r := forGoodRoom(t, "allow: [tool.test]\n"+twoSandboxes)
	d := r.d
	won := map[bool]int{}
	for i := range 8 {
		path := fmt.Sprintf("/r%d", i)
		askFor(t, d, "a.allowed.test", path)
		q := isAsked(t, d, 0, "a.allowed.test", path)
		link := linkIn(t, r.message(t, path))
		digest := r.shownSave(t, link)
		status := map[string]int{}
		var both sync.WaitGroup
		var mu sync.Mutex
		for _, body := range []string{"answer=yes&save=" + digest, "answer=no&for=1h"} {
			both.Go(func() {
				if strings.HasPrefix(body, "answer=no") {
					for range 3 * i { // from round to round it comes later
						r.post(t, link, "text/plain", "")
					}
				}
				got, _ := r.post(t, link, formType, body)
				mu.Lock()
				status[body[:9]] = got
				mu.Unlock()
			})
		}
		both.Wait()
		saved, refused := status["answer=ye"] == http.StatusOK, status["answer=no"] == http.StatusOK
		written := strings.Contains(fileOf(t, d), path+",") || strings.Contains(fileOf(t, d), path+"]")
		if saved == refused || saved != written {
			t.Errorf("%s (%s): saved %t, refused %t, written %t\n%s", path, q.ID, saved, refused, written, fileOf(t, d))
		}
		if got := statusOf(t, d, "http://a.allowed.test"+path); got == "200" != saved {
			t.Errorf("%s: it gets %s", path, got)
		}
		won[saved]++
	}
	t.Logf("for good won %d times", won[true])
}

// TestNoPathBreaksOutOfTheFile: what a sandbox asks for is one line of the file, whatever it is written with, and opens that alone.
func TestNoPathBreaksOutOfTheFile(t *testing.T) {
	d := world.Start(t, world.WithAdmin(world.AdminSocket, "allow: [tool.test]\n"+twoSandboxes))
	saved := 0
	for _, path := range []string{
		"/plain", `/a"b`, "/a'b", "/a#b", "/a: b", "/a:b", "/{x}", "/[x]", "/a,b", "/&a", "/!t", "/|", "/-", "/~", "/null", "/%41", "/%2e%2e/x", "/../x", "/a//b", "/a;b", "/$HOME",
		"/${HOME}", "/a\\nallow: [evil.test]", "/é", "/a]}\\n  - {host: evil.test}", "/@", "/`x`", "/a%0ab", "/?x=1", "", "x", "/" + strings.Repeat("a", 3000),
	} {
		before := fileOf(t, d)
		out, _ := d.Shell(t.TempDir(), "", fmt.Sprintf(`cat <<'E' | curl -sS -H 'Accept: application/json' http://egressd.internal/requests -d @-
{"host":"a.allowed.test:80","method":"GET","path":"%s","reason":"x"}
E`, strings.ReplaceAll(path, `"`, `\"`)))
		id := ""
		for _, q := range questions(t, d) {
			if q.State == "pending" {
				id = q.ID
			}
		}
		if id == "" {
			if fileOf(t, d) != before {
				t.Fatalf("%q changes the file: %s", path, out)
			}
			continue
		}
		if path == "" { // is asked for as a whole
			answers(t, d, "answer", id, "no")
			continue
		}
		e := d.RunCommand(t, nil, "answer", id, "yes", "--for", "good", "--config", d.Config)
		after := fileOf(t, d)
		if e.Code != 0 {
			if after != before {
				t.Errorf("%q: exit %d, and the file is %s", path, e.Code, after)
			}
			d.RunCommand(t, nil, "answer", id, "no", "--config", d.Config)
			continue
		}
		saved++
		if check := d.RunCommand(t, nil, "policy", "check", "--config", d.Config); check.Code != 0 || strings.Contains(after, "evil.test") || strings.Count(after, "\n") > strings.Count(before, "\n")+1 {
			t.Fatalf("%q: %s\n%s", path, check.Talk, after)
		}
		for _, other := range []string{"http://a.allowed.test/other", "http://a.allowed.test:8080" + path, "http://evil.test/"} {
			if check := d.RunCommand(t, nil, "check", other, "--sandbox", "near", "--config", d.Config); check.Code == 0 {
				t.Errorf("%q opens %s\n%s", path, other, after)
			}
		}
	}
	if saved < 8 {
		t.Errorf("only %d were saved, so this shows little", saved)
	}
	t.Logf("%d were saved", saved)
}
