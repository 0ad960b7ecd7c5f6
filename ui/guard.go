package ui

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// A guard decides who may look. The operator gets a link that works once. It is exchanged for a cookie, which
// every other request needs.
//
// The page has a host name of its own below localhost, which browsers resolve to loopback. Cookies do not
// keep ports apart: at 127.0.0.1, the cookie would be sent to every other server of this machine, also to
// one that a sandbox publishes, and pages of that server would count as the same site.
type guard struct {
	host string // NAME.localhost:PORT

	mu      sync.Mutex // guards what follows
	link    string     // "" once it was used
	expires time.Time  // of the link
	session string     // "" before the link was used
	csrf    string
}

const (
	linkLasts  = 10 * time.Minute
	cookieName = "__Host-egressd"
	csrfField  = "csrf"
	linkPath   = "/open/"
)

// newGuard returns a guard for a page that listens on a port.
func newGuard(port string) *guard {
	name := strings.ToLower(rand.Text()[:10])
	return &guard{
		host: net.JoinHostPort("egressd-"+name+".localhost", port), link: rand.Text() + rand.Text(), expires: time.Now().Add(linkLasts),
		csrf: rand.Text(),
	}
}

// Link returns the link that opens the page once.
func (g *guard) Link() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return "http://" + g.host + linkPath + g.link
}

// equal compares secrets in a time that does not depend on their bytes. The empty text equals nothing.
func equal(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1 && a != "" && b != ""
}

// exchange uses up the link. It returns the value of the cookie.
func (g *guard) exchange(link string) (session string, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !equal(link, g.link) || time.Now().After(g.expires) {
		return "", false
	}
	g.link, g.session = "", rand.Text()+rand.Text()
	return g.session, true
}

// A refusal is why a request is not answered.
type refusal struct {
	status    int
	why, next string
}

var (
	wrongHost   = &refusal{http.StatusMisdirectedRequest, "This is not the address of the page.", "Type egressd ui and open the link that it prints."}
	wrongOrigin = &refusal{http.StatusForbidden, "Another page sent this request.", "Open the link that egressd ui prints, and use the page itself."}
	noSession   = &refusal{http.StatusForbidden, "This browser has not opened the page.", "Type egressd ui again: each link works once, and until the command ends."}
	usedLink    = &refusal{http.StatusForbidden, "This link was used already, or is too old.", "Type egressd ui again for a new one."}
	wrongToken  = &refusal{http.StatusForbidden, "The form is from an earlier page.", "Reload the page and send the form again."}
)

// admits returns nil if the request may be answered.
func (g *guard) admits(r *http.Request) *refusal {
	if r.Host != g.host {
		return wrongHost
	}
	opening := strings.HasPrefix(r.URL.Path, linkPath)
	if origin := r.Header.Get("Origin"); origin != "" && origin != "http://"+g.host {
		return wrongOrigin
	}
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch site := r.Header.Get("Sec-Fetch-Site"); {
	case site == "" && reads, site == "same-origin":
	case site == "" && r.Header.Get("Origin") != "":
	case site == "none" && reads: // typed, or from a bookmark
	case opening && reads && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document":
	default:
		return wrongOrigin
	}
	if opening {
		return nil
	}
	g.mu.Lock()
	session := g.session
	g.mu.Unlock()
	cookies := r.CookiesNamed(cookieName)
	if len(cookies) != 1 || !equal(cookies[0].Value, session) {
		return noSession
	}
	if !reads && !equal(r.PostFormValue(csrfField), g.csrf) {
		return wrongToken
	}
	return nil
}

// open answers the one-time link. A redirect would still count as started by another site, so that the
// browser would keep the cookie back; the page that is sent goes on by itself.
func (s *Server) open(w http.ResponseWriter, r *http.Request) {
	session, ok := s.guard.exchange(strings.TrimPrefix(r.URL.Path, linkPath))
	if !ok {
		s.refuse(w, r, usedLink)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: cookieName, Value: session, Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	first := "/"
	if s.options.Runs != nil {
		first = "/runs"
	}
	s.show(w, r, "open", first)
}

// protect sets the headers of every answer.
func (s *Server) protect(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src '"+s.scriptHash+"'; style-src '"+s.styleHash+"'; img-src 'self' data:; connect-src 'self'; "+
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin") // with no-referrer, browsers send forms with the origin null
	h.Set("Cache-Control", "no-store")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), clipboard-read=()")
}

// sourceHash returns the hash of an inline script or style for a Content-Security-Policy.
func sourceHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}
