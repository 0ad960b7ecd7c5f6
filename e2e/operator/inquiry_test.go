package operator

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/record"
)

// inquires sends an inquiry from the sandbox of a token, and returns its status and its JSON.
func inquires(t *testing.T, d *world.Daemon, user, line string, into any) (status string) {
	t.Helper()
	command := "curl -sS --max-time 70 -H 'Accept: application/json' -w '\\n%{http_code}' "
	if user != "" {
		command += "-x http://" + user + "@$LAB_PROXY "
	}
	out, err := d.Shell(t.TempDir(), "", command+line)
	at := strings.LastIndex(out, "\n")
	body, status := out[:max(at, 0)], out[at+1:]
	if err != nil {
		t.Fatalf("%s: %v, %s", line, err, out)
	}
	if into != nil {
		if err := json.Unmarshal([]byte(body), into); err != nil {
			t.Fatalf("%s: %v in %s", line, err, out)
		}
	}
	return status
}

const requestsURL = "http://egressd.internal/requests"

func asksFor(host, more, why string) string {
	body, err := json.Marshal(why)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf(`%s -d '{"host":%q%s,"reason":%s}'`, requestsURL, host, more, body)
}

// TestAnAgentAsksForItself is an agent without a manual: it is denied, finds the address in the denial, asks, waits, and goes
// on with exactly what a person granted. The person takes it back.
func TestAnAgentAsksForItself(t *testing.T) {
	d := world.Start(t, world.WithAdmin(world.AdminSocket, "allow: [allowed.test]\n"))
	mark := d.LogMark(t)
	var denial struct{ ID, Class, Ask string }
	if status := inquires(t, d, "", "http://a.allowed.test/x", &denial); status != "403" || denial.Class != "default-deny" || denial.Ask == "" {
		t.Fatalf("status %s, %+v", status, denial)
	}
	var why egress.Denial
	if status := inquires(t, d, "", denial.Ask+"denied/"+denial.ID, &why); status != "200" || why.Class != "default-deny" || why.Destination != "a.allowed.test:80" || why.Path != "/x" {
		t.Errorf("status %s, %+v", status, why)
	}
	var all struct {
		Denied []egress.Denial
		Ask    struct{ Method, URL string }
	}
	if status := inquires(t, d, "", denial.Ask, &all); status != "200" || len(all.Denied) != 1 || all.Denied[0].ID != denial.ID {
		t.Errorf("status %s, %+v", status, all)
	}
	var asked, answered egress.Access
	line := strings.Replace(asksFor("a.allowed.test:80", `,"method":"GET","path":"/x"`, "the build needs /x"), requestsURL, all.Ask.URL, 1)
	if status := inquires(t, d, "", line, &asked); status != "202" || asked.State != "pending" || asked.ID == "" {
		t.Fatalf("status %s, %+v", status, asked)
	}
	q := isAsked(t, d, 0, "a.allowed.test", "/x")
	if q.ID != asked.ID || q.Words != "the build needs /x" || q.Pattern != "a.allowed.test:80" || q.Method != "GET" {
		t.Errorf("listed %+v", q)
	}
	waited := make(chan string, 1)
	go func() {
		out, _ := d.Shell(t.TempDir(), "", "curl -sS --max-time 70 -H 'Accept: application/json' '"+requestsURL+"/"+asked.ID+"?wait=60'")
		waited <- out
	}()
	time.Sleep(100 * time.Millisecond) // the wait has begun
	answers(t, d, "answer", q.ID, "yes", "--for", "10m")
	if err := json.Unmarshal([]byte(<-waited), &answered); err != nil || answered.State != "approved" || answered.Until == nil {
		t.Errorf("%v, %+v", err, answered)
	}
	for path, want := range map[string]string{"/x": "200", "/y": "403"} {
		if status := inquires(t, d, "", "http://a.allowed.test"+path, nil); status != want {
			t.Errorf("%s: status %s", path, status)
		}
	}
	answers(t, d, "answer", q.ID, "no", "instead")
	if status := inquires(t, d, "", "http://a.allowed.test/x", nil); status != "403" {
		t.Errorf("taken back: status %s", status)
	}
	var again egress.Access
	if status := inquires(t, d, "", line, &again); status != "202" || again.State != "rejected" {
		t.Errorf("asked again: status %s, %+v", status, again)
	}
	records, err := d.Log.Since(mark)
	if err != nil {
		t.Fatal(err)
	}
	var questions, told int
	for _, r := range records {
		if r.Decision != nil && r.Decision.Action == "ask" && strings.Contains(r.Note, "the build needs /x") {
			questions++
		}
		if r.Kind == record.KindAdmin && strings.Contains(r.Note, asked.ID) {
			told++
		}
	}
	if questions != 1 || told != 3 { // the answer, its grant, the other answer
		t.Errorf("%d questions and %d answers are recorded", questions, told)
	}
}

// TestWhatNobodyIsAsked is allowed already, or denied by more than silence, or no request for one thing.
func TestWhatNobodyIsAsked(t *testing.T) {
	d := world.Start(t, world.WithAdmin(world.AdminSocket, "allow: [allowed.test]\ndeny: [\"*.evil.test\"]\nask: [b.allowed.test]\n"))
	for line, want := range map[string]string{
		asksFor("allowed.test", "", "x"):                                         "200 allowed",
		asksFor("https://allowed.test/", "", "x"):                                "200 allowed",
		asksFor("data.evil.test", "", "x"):                                       "403 refused",
		asksFor("10.0.0.5:443", "", "x"):                                         "403 refused",
		asksFor("169.254.169.254:80", "", "x"):                                   "400 ",
		asksFor("localhost:22", "", "x"):                                         "400 ",
		asksFor("egressd.internal:443", "", "x"):                                 "403 refused",
		asksFor("b.allowed.test", "", "a rule asks"):                             "202 pending",
		asksFor("*.allowed.test", "", "x"):                                       "400 ",
		asksFor("203.0.113.0/24:443", "", "x"):                                   "400 ",
		asksFor("user@allowed.test:443", "", "x"):                                "400 ",
		asksFor("a.allowed.test", "", " "):                                       "400 ",
		asksFor("a.allowed.test", "", strings.Repeat("x", 501)):                  "400 ",
		asksFor("a.allowed.test", `,"path":"no slash"`, "x"):                     "400 ",
		asksFor("a.allowed.test", `,"sandbox":"other"`, "x"):                     "400 ",
		asksFor("a.allowed.test", `,"port":1`, "x"):                              "400 ",
		requestsURL + " -d '" + `{"host":"a.allowed.test","reason":"x"}{}` + "'": "400 ",
		requestsURL + "/00000000000 ":                                            "404 ",
		"-X PUT " + requestsURL:                                                  "405 ",
		"http://egressd.internal/v1/questions":                                   "404 ",
		"-X POST http://egressd.internal/v1/questions/X/approve":                 "405 ",
		"'" + requestsURL + "/X?wait=61'":                                        "400 ",
	} {
		var a egress.Access
		if status := inquires(t, d, "", line, &a); status+" "+a.State != want {
			t.Errorf("%s: %s %s, want %s", line, status, a.State, want)
		}
		time.Sleep(20 * time.Millisecond) // below the rate of inquiries
	}
	if all := questions(t, d); len(all) != 1 || all[0].Rule != "ask[0]" || all[0].Words != "a rule asks" || all[0].Pattern != "" {
		t.Errorf("asked %+v", all)
	}
}

// TestSandboxesAskApart has one sandbox flood, guess, and lie, beside another one. Neither learns anything of the other.
func TestSandboxesAskApart(t *testing.T) {
	d := world.Start(t, world.WithAdmin(world.AdminSocket, "allow: [allowed.test]\nsandboxes: [{name: ci, token_file: ci.token}, {name: web, token_file: web.token}]\n"))
	const ci, web = "ci:open-sesame", "web:another-secret"
	var mine, theirs, same egress.Access
	inquires(t, d, web, asksFor("b.allowed.test:80", "", "of web"), &mine)
	var denial struct{ ID string }
	inquires(t, d, web, "http://c.allowed.test/secret-path", &denial)
	for _, line := range []string{requestsURL + "/" + mine.ID, "http://egressd.internal/denied/" + denial.ID} {
		if status := inquires(t, d, ci, line, nil); status != "404" {
			t.Errorf("%s is shown to another sandbox: %s", line, status)
		}
		if status := inquires(t, d, web, line, nil); status != "200" {
			t.Errorf("%s is not shown to its own: %s", line, status)
		}
	}
	for _, who := range []string{"ci:wrong", ""} {
		if status := inquires(t, d, who, "http://egressd.internal/", nil); status != "407" {
			t.Errorf("%q: status %s", who, status)
		}
	}
	const lie = "\x1b[2Jegressd: approved\r\n\u202eyes<script>alert(1)</script>\" egressd answer X yes"
	inquires(t, d, ci, asksFor("d.allowed.test:80", "", lie), &theirs)
	inquires(t, d, ci, asksFor("d.allowed.test:80", "", "harmless words"), &same)
	if theirs.ID == "" || same.ID != theirs.ID {
		t.Errorf("the same terms are asked twice: %+v, %+v", theirs, same)
	}
	out, err := d.Shell(t.TempDir(), "", "for i in $(seq 60); do curl -sS -o /dev/null -w '%{http_code} ' -x http://"+ci+"@$LAB_PROXY "+requestsURL+` -d '{"host":"h'$i'.test:80","reason":"flood"}'; done`)
	if err != nil || !strings.Contains(out, "429") || strings.Count(out, "202") > 3 {
		t.Errorf("a flood got %s, %v", out, err)
	}
	var after egress.Access
	if status := inquires(t, d, web, asksFor("e.allowed.test:80", "", "of web, too"), &after); status != "202" {
		t.Errorf("the other sandbox is refused: %s", status)
	}
	of := map[string]int{}
	for _, q := range questions(t, d) {
		of[q.Sandbox]++
		if q.ID == theirs.ID && q.Words != lie {
			t.Errorf("the words became %q", q.Words)
		}
	}
	if of["ci"] != 4 || of["web"] != 2 {
		t.Errorf("asked %v", of)
	}
	list := answers(t, d, "answer")
	for _, shown := range []string{list.Out, d.Output.String()} {
		if strings.ContainsAny(shown, "\x1b\r\u202e") || strings.Contains(shown, "\negressd: approved") {
			t.Errorf("the words are not escaped: %q", shown)
		}
	}
	answers(t, d, "answer", theirs.ID, "yes")
	if status := inquires(t, d, ci, "http://d.allowed.test/", nil); status != "200" {
		t.Errorf("approved: status %s", status)
	}
	if status := inquires(t, d, web, "http://d.allowed.test/", nil); status != "403" {
		t.Errorf("another sandbox has the answer: status %s", status)
	}
}
