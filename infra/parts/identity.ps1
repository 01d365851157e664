# The identity under which beats and workers run. It has no password: Azure, or a Kubernetes cluster, vouches for it.
Set-StrictMode -Version Latest

function Confirm-Identity {
    <#
    .SYNOPSIS
        Creates the managed identity where it does not exist; returns it, or nothing under -WhatIf before it exists.
    #>
    [CmdletBinding(SupportsShouldProcess)]
    param(
        [Parameter(Mandatory)] [string] $ResourceGroupName,
        [Parameter(Mandatory)] [string] $Location,
        [Parameter(Mandatory)] [string] $IdentityName
    )
    $identity = @{ ResourceGroupName = $ResourceGroupName; Name = $IdentityName }
    $found = Get-AzUserAssignedIdentity @identity -ErrorAction SilentlyContinue
    if (-not $found -and $PSCmdlet.ShouldProcess($IdentityName, 'Create the managed identity')) {
        $found = New-AzUserAssignedIdentity @identity -Location $Location -Tag $madeBy
    }
    $found
}

function Confirm-FederatedCredential {
    <#
    .SYNOPSIS
        Lets a service account of a Kubernetes cluster act as the identity. Creates it, or brings it to these values.
    #>
    [CmdletBinding(SupportsShouldProcess)]
    param(
        [Parameter(Mandatory)] [string] $ResourceGroupName,
        [Parameter(Mandatory)] [string] $IdentityName,
        [Parameter(Mandatory)] [string] $Issuer,
        [Parameter(Mandatory)] [string] $ServiceAccount
    )
    $name = 'kubernetes-' + ($ServiceAccount -replace '[:.]', '-')
    $credential = @{ ResourceGroupName = $ResourceGroupName; IdentityName = $IdentityName; Name = $name }
    $subject = "system:serviceaccount:$ServiceAccount"
    $found = Get-AzFederatedIdentityCredential @credential -ErrorAction SilentlyContinue
    if ((-not $found -or $found.Issuer -ne $Issuer -or $found.Subject -ne $subject) -and
        $PSCmdlet.ShouldProcess($IdentityName, "Let $ServiceAccount of $Issuer act as the identity")) {
        New-AzFederatedIdentityCredential @credential -Issuer $Issuer -Subject $subject | Out-Null
    }
}
