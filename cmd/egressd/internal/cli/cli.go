// Package cli is how all commands of egressd talk: errors with what to type next,
// text that no terminal acts on, JSON, the flags that many of them have. It knows of
// no policy and no log. Data goes to standard output and talk to standard error.
package cli
