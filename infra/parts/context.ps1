# Where the script works: the modules it needs, the subscription, the resource group, and who is signed in.
Set-StrictMode -Version Latest

# On everything that create.ps1 makes; cleanup.ps1 deletes nothing without it.
$madeBy = @{ 'made-by' = 'celery-sqlbeat' }

function Assert-Command {
    <#
    .SYNOPSIS
        Stops with the command that helps where a module is not installed.
    .NOTES
        Not by #Requires -Modules: the tests replace these commands on machines that do not have Az.
    #>
    [CmdletBinding()]
    param(
        [Parameter(Mandatory)] [string[]] $Name,
        [Parameter(Mandatory)] [string] $Module
    )
    foreach ($one in $Name) {
        if (-not (Get-Command -Name $one -ErrorAction SilentlyContinue)) {
            throw "$one is not there. Run: Install-Module $Module -Scope CurrentUser"
        }
    }
}

function Select-Subscription {
    <#
    .SYNOPSIS
        Makes all that follows work in one subscription, in this process only.
    #>
    [CmdletBinding()]
    param([Parameter(Mandatory)] [guid] $SubscriptionId)
    if (-not (Get-AzContext)) {
        throw 'Nobody is signed in. Run: Connect-AzAccount'
    }
    # Nothing is changed in Azure, so -WhatIf must not skip it: the rest would look into another subscription.
    Set-AzContext -Subscription "$SubscriptionId" -Scope Process -WhatIf:$false -Confirm:$false | Out-Null
}

function Get-SignedInPrincipal {
    <#
    .SYNOPSIS
        Returns the name and the object id of whoever is signed in: a user, or an application.
    #>
    [CmdletBinding()]
    param()
    $account = (Get-AzContext).Account
    $found = if ($account.Type -eq 'User') {
        Get-AzADUser -SignedIn
    }
    else {
        Get-AzADServicePrincipal -ApplicationId $account.Id
    }
    if (-not $found) {
        throw 'Entra ID does not tell who is signed in: give -EntraAdminName and -EntraAdminObjectId.'
    }
    [pscustomobject] @{ Name = $found.DisplayName; ObjectId = [guid] $found.Id }
}

function Get-DefaultServerName {
    <#
    .SYNOPSIS
        Returns a name that is unique in all of Azure, and the same each time.
    #>
    [CmdletBinding()]
    [OutputType([string])]
    param(
        [Parameter(Mandatory)] [guid] $SubscriptionId,
        [Parameter(Mandatory)] [string] $ResourceGroupName
    )
    $bytes = [Text.Encoding]::UTF8.GetBytes("$SubscriptionId/$($ResourceGroupName.ToLowerInvariant())")
    $digest = [Convert]::ToHexString([Security.Cryptography.SHA256]::HashData($bytes)).ToLowerInvariant()
    'sqlbeat-' + $digest.Substring(0, 13)
}

function Confirm-ResourceGroup {
    <#
    .SYNOPSIS
        Creates the resource group where it does not exist. One that somebody else made keeps its tags.
    #>
    [CmdletBinding(SupportsShouldProcess)]
    param(
        [Parameter(Mandatory)] [string] $ResourceGroupName,
        [Parameter(Mandatory)] [string] $Location
    )
    if (Get-AzResourceGroup -Name $ResourceGroupName -ErrorAction SilentlyContinue) {
        Write-Verbose "The resource group $ResourceGroupName is there."
    }
    elseif ($PSCmdlet.ShouldProcess($ResourceGroupName, "Create the resource group in $Location")) {
        New-AzResourceGroup -Name $ResourceGroupName -Location $Location -Tag $madeBy | Out-Null
    }
}
