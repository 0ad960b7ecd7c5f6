package world

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

// LeftFile lists, in testdata/conformance, the cases that exist and that
// nothing here covers, with why.
const LeftFile = "left.json"

// Covers says which cases a test that is written out covers; TestCoverage
// reads the calls from the source, also that of the audit log's tests.
func Covers(t *testing.T, ids ...string) { t.Helper() }

// A Vector is one case of testdata/conformance: what a sandbox does, and what
// has to come of it. Either To, or Send and Hex, or Ask and Wire are given.
type Vector struct {
	ID     string `json:"id"`
	Says   string `json:"says"`
	Policy string `json:"policy"`

	// To are destinations, as the sandbox writes them. Each destination is one case,
	// which goes through every way in that can express the destination, or through Ways.
	To   []string `json:"to"`
	Ways []string `json:"ways"`

	// Claims is the host that the client names in its first bytes, or in its Host field, if To has an address.
	Claims string `json:"claims"`

	// Once the tunnel is open, First or the bytes of the file Hello are sent,
	// cut at the offsets in Cuts, or after each Every bytes, with a pause, or
	// in one piece with the request if Eager.
	First string `json:"first"`
	Hello string `json:"hello"`
	Cuts  []int  `json:"cuts"`
	Every int    `json:"every"`
	Eager bool   `json:"eager"`

	// Send is written to the proxy port as it stands. The client sends the first part
	// at once, and each later part after it has read an answer. Hex holds bytes that
	// are no text.
	Send []string `json:"send"`
	Hex  []string `json:"hex"`

	// Inside is the destination of an inspected tunnel in which Send is sent,
	// through the ways in within it.
	Inside string `json:"inside"`

	// Ask are questions for names, each a case of its own: a type and a name in
	// the form of zone files. Wire are whole messages in hexadecimal. Both go to
	// the name server, over UDP and TCP.
	Ask  []string `json:"ask"`
	Wire []string `json:"wire"`

	Expect Expectation  `json:"expect"`
	Or     *Expectation `json:"or"` // what is as good

	// Captured is expected of a captured connection instead, where To is no part of
	// what is asked for, but the name that Hello claims.
	Captured *Expectation `json:"captured"`
}

// An Expectation says what has to be seen. One of Allow, Deny, Cut, and for
// raw bytes Status or Reply, is given.
type Expectation struct {
	// Allow are the addresses of which one is dialled; application data from
	// there has to come back.
	Allow []string `json:"allow"`
	// Deny are the classes of which one is answered and recorded.
	Deny []policy.Class `json:"deny"`
	// Cut are the classes of which one is recorded when a tunnel that was
	// opened is closed before a byte went upstream.
	Cut []policy.Class `json:"cut"`
	// Ended means cut, for whatever recorded reason.
	Ended bool `json:"ended"`
	// Fails are the classes of which one is answered when the network did not
	// carry what the policy allows. Nobody but the name server and the
	// addresses in Dials is spoken to.
	Fails []policy.Class `json:"fails"`
	Dials []string       `json:"dials"`

	// Status are the answers to raw HTTP, in order; Reply is the beginning of
	// what answers raw SOCKS, in hexadecimal.
	Status []int   `json:"status"`
	Reply  *string `json:"reply"`
	// Passes is how many requests among raw HTTP are recorded as allowed.
	Passes int `json:"passes"`
	// Holds and Lacks are texts that upstream received, and did not.
	Holds []string `json:"holds"`
	Lacks []string `json:"lacks"`
	// Body is a text in the last answer's body.
	Body string `json:"body"`
	// Stays means that the connection is still open after the last answer.
	Stays bool `json:"stays"`

	// RCode is the response code of an answer to a question, "none" without an
	// answer. Deny then are the classes of which one is recorded. EDE is the extended
	// error of the answer, Addrs the addresses in it.
	RCode string   `json:"rcode"`
	EDE   uint16   `json:"ede"`
	Addrs []string `json:"addrs"`

	// Host is dst.host in the record, where it is not To in lower case.
	Host string `json:"host"`
	// DstClass is dst.class in the record.
	DstClass string `json:"dst_class"`
	// Asks means that the name may be resolved before it is refused.
	Asks bool `json:"asks"`
}

// Policies are the names of the policies in the order in which they are run.
func Policies() []string {
	return []string{"P0", "P-any", "P-denylist", "P-ip", "P-wild", "P-labels", "P2", "P-self", "P-ech", "P-auth", "P-none", "P1", "P0-inside", "P-layers", "P-exception", "P-claims"}
}

// Vectors reads every vector, of all files.
func Vectors(t *testing.T) []Vector {
	t.Helper()
	files, err := filepath.Glob(Source("testdata", "conformance", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all []Vector
	for _, path := range files {
		if filepath.Base(path) == LeftFile {
			continue
		}
		var some []Vector
		ReadJSON(t, path, &some)
		all = append(all, some...)
	}
	for i := range all {
		v := &all[i]
		v.expand()
		if v.ID == "" || v.Says == "" || !slices.Contains(Policies(), v.Policy) || (len(v.To) == 0) == (len(v.Send)+len(v.Hex)+len(v.Ask)+len(v.Wire) == 0) {
			t.Fatalf("vector %q (%s) is not complete", v.ID, v.Says)
		}
	}
	return all
}

// expand replaces what stands for something long: {{ab*300}} is ab, 300 times.
func (v *Vector) expand() {
	long := regexp.MustCompile(`(?s)\{\{(.+?)\*(\d+)\}\}`)
	for _, texts := range [][]string{v.To, v.Send, v.Ask, v.Wire} {
		for i := range texts {
			texts[i] = long.ReplaceAllStringFunc(texts[i], func(s string) string {
				m := long.FindStringSubmatch(s)
				n, _ := strconv.Atoi(m[2])
				return strings.Repeat(m[1], n)
			})
		}
	}
}

// ReadJSON decodes a file whose fields have all to be known.
func ReadJSON(t *testing.T, path string, into any) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	strict := json.NewDecoder(f)
	strict.DisallowUnknownFields()
	if err := strict.Decode(into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// FirstBytes returns the first bytes in the tunnel, in the pieces in which they are
// sent.
func (v *Vector) FirstBytes(t *testing.T) [][]byte {
	t.Helper()
	b := []byte(v.First)
	if v.Hello != "" {
		var err error
		if b, err = os.ReadFile(Source("testdata", "conformance", "clienthello", v.Hello)); err != nil {
			t.Fatal(err)
		}
	}
	cuts := v.Cuts
	for at := v.Every; v.Every > 0 && at < len(b); at += v.Every {
		cuts = append(cuts, at)
	}
	var pieces [][]byte
	from := 0
	for _, cut := range cuts {
		pieces = append(pieces, b[from:cut])
		from = cut
	}
	return append(pieces, b[from:])
}

// parts returns what is sent raw.
func (v *Vector) parts(t *testing.T) [][]byte {
	t.Helper()
	var parts [][]byte
	for _, text := range v.Send {
		parts = append(parts, []byte(text))
	}
	for _, digits := range v.Hex {
		b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		if err != nil {
			t.Fatalf("%s: %v", v.ID, err)
		}
		parts = append(parts, b)
	}
	return parts
}
